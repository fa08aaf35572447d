"""Tests of HCloud; the directories mirror the rooms of the package."""
