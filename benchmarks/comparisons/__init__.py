"""Models that people come with, fitted here and elsewhere, or in several ways here."""
