assert(coroutine.close == nil)
return "contained"
