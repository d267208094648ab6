-- expect: require cannot read
return require "helper." -- here
