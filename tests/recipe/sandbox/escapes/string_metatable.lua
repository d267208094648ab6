assert(getmetatable("") == nil and getmetatable("abc") == nil)
return "contained"
