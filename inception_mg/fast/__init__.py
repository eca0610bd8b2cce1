"""The same arithmetic as the plain form, at less cost."""
