-- expect: cannot set .shout.*read-only
string.shout = string.upper -- here
