-- expect: (found no module|cannot read)
return require "socket.core" -- here
