"""Agents' transcripts, chat templates that render them, and how much of it the reader of request bodies finds."""
