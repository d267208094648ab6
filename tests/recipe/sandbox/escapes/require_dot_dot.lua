-- expect: require cannot read
return require "helper..helper" -- here
