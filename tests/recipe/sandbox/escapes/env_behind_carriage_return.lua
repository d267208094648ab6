-- expect: a recipe has no _ENV
-- a comment ends here_ENV.x = 1
