"""Unit files and the installer."""
