"""Tests of pricing and of the reports."""
