-- GhostVis with a decoder of 20 layers: trained from nothing on text, then taught to see by a frozen CLIP encoder. The
-- folders that it reads: recipes/lib/ghostvis.lua.
--
--   fvlm-engine train recipes/ghostvis-d20.lua --arg data=data --arg vision=weights/clip-vit-large-patch14-336
return require("fvlm.ghostvis").recipe(20)
