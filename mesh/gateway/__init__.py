"""The HTTP surface: OpenAI's endpoints, the mesh's own, and what stands between a socket and the steward."""
