assert(math.random == nil and math.randomseed == nil)
return "contained"
