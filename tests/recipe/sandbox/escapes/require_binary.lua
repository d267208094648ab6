-- expect: compiled Lua; only source text is accepted
return require "binary" -- here
