assert(rawlen(require "fvlm") == 0 and #require "fvlm" == 0)
return "contained"
