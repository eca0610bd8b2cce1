"""All that measures speed: contenders, who races whom, and the figures."""
