# SPDX-License-Identifier: Apache-2.0
"""Who holds what of NVIDIA's driver: contexts and memory per process and GPU, seen from its ioctls.

``devices`` says which device numbers are the driver's and which GPU is which; ``hooks`` chooses how its calls are
seen; ``probe`` loads and attaches that; ``books`` reads the sums. docs/driver.md says what is seen and what is not.
"""
