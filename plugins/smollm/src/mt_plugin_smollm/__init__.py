"""SmolLM3 for mt-core."""
