assert(string.dump == nil and ("").dump == nil)
return "contained"
