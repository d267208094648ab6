-- expect: found no module
return require "FVLM" -- here
