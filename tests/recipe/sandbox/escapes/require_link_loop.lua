-- expect: found no module
return require "loop" -- here
