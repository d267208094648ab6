assert(rawget(require "fvlm", "adamw") == nil)
return "contained"
