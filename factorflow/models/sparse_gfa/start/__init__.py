"""Where fits begin: at principal components, at an earlier fit, at several starts; and the turn to spikes."""
