-- sizes and byte order of this machine
assert(string.pack == nil and string.unpack == nil and string.packsize == nil)
return "contained"
