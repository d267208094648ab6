-- expect: require cannot read
return require "fvlm...secret" -- here
