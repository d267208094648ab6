-- expect: (a link that leads out of it|found no module)
return require "environ" -- here
