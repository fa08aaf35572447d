"""The same decision code on a virtual cloud: any workload under any policy, hours in seconds."""
