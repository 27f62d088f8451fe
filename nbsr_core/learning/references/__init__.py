"""Standard models that NBSR is compared with, each as small as its paper allows, all trained and judged alike."""
