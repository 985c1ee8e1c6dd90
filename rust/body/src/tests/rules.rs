//! Rules H and E over random conversations.
