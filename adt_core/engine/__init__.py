"""The round loop, which decodes images, and everything that the loop needs: slots, graphs, queue and memory checks."""
