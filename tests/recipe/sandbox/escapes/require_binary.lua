-- expect: compiled Lua; a recipe is read as text only
return require "binary" -- here
