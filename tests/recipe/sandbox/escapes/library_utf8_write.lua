-- expect: read-only
rawset(utf8, "char", print) -- here
