"""Plan ahead: which waiting jobs start now and which later, by distributions of run times (3Sigma §4.3)."""
