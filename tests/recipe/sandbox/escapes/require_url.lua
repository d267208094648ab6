-- expect: require cannot read
return require "file:///etc/passwd" -- here
