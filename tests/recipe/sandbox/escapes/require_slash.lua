-- expect: require cannot read
return require "sub/helper" -- here
