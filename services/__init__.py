"""The four services and what they share. They never import each other; they talk through the SDK that users have."""
