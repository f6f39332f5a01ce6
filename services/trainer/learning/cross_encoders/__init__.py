"""Cross-encoders: exported, trained and evaluated by re-ranking."""
