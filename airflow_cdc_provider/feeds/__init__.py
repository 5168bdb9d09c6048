"""What sensors and triggers observe: news of a source or topic, and the lag behind it."""
