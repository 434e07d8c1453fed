"""The admin socket: sessions made, shown, changed and released by commands."""
