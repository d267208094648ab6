-- expect: cannot set .pi.*read-only
math.pi = 3 -- here
