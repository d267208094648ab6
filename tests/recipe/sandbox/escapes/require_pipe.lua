-- expect: found no module
return require "pipe" -- here
