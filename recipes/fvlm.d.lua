---@meta fvlm
-- Generated from the engine's schema by `fvlm-engine recipe stubs`; do not edit.

---@class fvlm
local fvlm = {}

---Return the value of `--arg name=value` on the command line, in the type of the default.
---@generic T
---@param name string
---@param default? T
---@return T
function fvlm.arg(name, default) end

---A sum of weighted objectives, the same as a plain list.
---@param terms (fvlm.NextToken|fvlm.Dpo|fvlm.Kto|fvlm.Contrastive|fvlm.Kl|fvlm.Manifold|fvlm.Grpo)[]
---@return (fvlm.NextToken|fvlm.Dpo|fvlm.Kto|fvlm.Contrastive|fvlm.Kl|fvlm.Manifold|fvlm.Grpo)[]
function fvlm.sum(terms) end

---What a `control` function may return.
---@alias fvlm.Action fvlm.StopStage|fvlm.Save|fvlm.ScaleLr

---The whole run: the model, what all stages share, and the stages in the order they run.
---@class fvlm.Recipe
---@field name string Name of the run folder.
---@field seed? integer Seed of data order, packing, initialization, the dropout of adapters and the answers of fvlm.grpo. Default: `42`.
---@field precision? "bf16"|"fp8"|"fp16"|"tf32"|"fp32" Precision of the model's computation. Default: `"bf16"`.
---@field gradients? "fp32"|"bf16" Dtype in which parameter gradients are accumulated. Default: `"fp32"`.
---@field deterministic? boolean Bitwise reproducible runs on a GPU, at some cost in speed. CPU runs always are. Default: `false`.
---@field model string|fvlm.Model The model.
---@field kernels? string|(string)[]|fvlm.Kernels Preferred backends.
---@field speed? boolean|fvlm.Speed Switches of optimizations.
---@field loader? fvlm.Loader How shards are read.
---@field checkpoint? fvlm.Checkpoint When checkpoints are written.
---@field guard? fvlm.Guard What happens when numbers go wrong.
---@field quantization? string|fvlm.Quantization Quantization for stages that are quantization_aware.
---@field log_every? integer How often metrics are written. In steps. Default: `10`.
---@field [integer] fvlm.Stage The stages, in the order they run.

---The whole run: the model, what all stages share, and the stages in the order they run.
---@param table fvlm.Recipe
---@return fvlm.Recipe
function fvlm.recipe(table) end

---The model: a vision tower, a decoder and the connector between them.
---@class fvlm.Model
---@field directory? string A model directory or checkpoint in place of vision, decoder and connector. The first stage, and `from = "model"`, start from its weights. `model = "DIR"` is short for it.
---@field vision? string|fvlm.Dinov2|fvlm.Clip|fvlm.Siglip|fvlm.Bytes The encoder: a Hugging Face folder (config.json, model.safetensors), or a new one.
---@field decoder? string|fvlm.Llama|fvlm.GhostVis The language model: a Hugging Face folder with its tokenizer, or a new one.
---@field decoders? (string|fvlm.Llama|fvlm.GhostVis)[] Further language models, `decoder2`, `decoder3` and so on, which read the same latents of fvlm.byte_latents behind adapters of their own. Each has its tokenizer, its texts (`decoders` of a mix) and its parameter group; the loss is the mean over all.
---@field connector? fvlm.Foveated|fvlm.Mlp|fvlm.Perceiver|fvlm.AveragePool|fvlm.PixelShuffle|fvlm.InternVl|fvlm.Ovis2|fvlm.GraniteDocling|fvlm.Gemma3|fvlm.PaliGemma|fvlm.Qwen2Vl|fvlm.GlmOcr|fvlm.HunyuanVl|fvlm.Mistral3|fvlm.Lfm2Vl|fvlm.Gemma4|fvlm.ByteLatents|fvlm.TextOnly The connector; a plain table is fvlm.foveated. Initialized from the seed, unless a stage's `from` provides one.
---@field image_size? integer Edge of the square frames that the encoder reads. The default is that of the preprocessor_config.json in the encoder's folder, where there is one (not for DINOv2); or, with a `directory`, that of its encoder, at most 224 unless its connector makes rows of every patch, as in LLaVA and SmolVLM. In pixels. Default: `224`.
---@field min_pixels? integer Fewest pixels of an image, as in transformers and in place of the encoder's preprocessor_config.json; for image processors that make cells of images of any size: Qwen2-VL to Qwen3.5, LFM3-VL, GLM, PaddleOCR-VL, HunyuanOCR and VideoLLaMA 3. Checkpoints and exports keep it. Default: the folder's. In pixels.
---@field max_pixels? integer Most pixels of an image, for the same image processors. Default: the folder's. In pixels.
---@field video_min_pixels? integer Fewest pixels of a video, as its processor counts them: of each frame (Qwen2-VL, Qwen2.5-VL), or of all frames together (Qwen3-VL, Qwen3.5, LFM3-VL, GLM). Default: the folder's. In pixels.
---@field video_max_pixels? integer Most pixels of a video, counted in the same way. Default: the folder's. In pixels.
---@field adapters? fvlm.Lora|(fvlm.Lora)[] Low-rank adapters: of each part at most one fvlm.lora. The parts without stay as they are.
---@field groups? table<string, string|(string)[]> Parameter groups besides connector, vision and decoder: patterns (with *) of parameter names as in a model directory. A number below 0 counts from the last layer: decoder.model.layers.-1.*. Matched parameters leave those three groups; no parameter may match two groups.

---The model: a vision tower, a decoder and the connector between them.
---@param table fvlm.Model
---@return fvlm.Model
function fvlm.model(table) end

---A new DINOv2 vision tower, initialized from the recipe's seed.
---@class fvlm.Dinov2
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Attention heads; must divide the width.
---@field mlp? integer Features inside the MLP. Default: 4 x width.
---@field patch_size? integer Edge of the square patch that becomes one token. In pixels. Default: `14`.

---A new DINOv2 vision tower, initialized from the recipe's seed.
---@param table fvlm.Dinov2
---@return fvlm.Dinov2
function fvlm.dinov2(table) end

---A new vision tower of CLIP, initialized from the recipe's seed as transformers does it.
---@class fvlm.Clip
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Attention heads; must divide the width.
---@field mlp? integer Features inside the MLP. Default: 4 x width.
---@field patch_size? integer Edge of the square patch that becomes one token. In pixels. Default: `14`.
---@field drop_class_token? boolean Leave the class token out of what the connector reads, as LLaVA does. Default: `false`.

---A new vision tower of CLIP, initialized from the recipe's seed as transformers does it.
---@param table fvlm.Clip
---@return fvlm.Clip
function fvlm.clip(table) end

---A new vision tower of SigLIP, initialized from the recipe's seed as transformers does it. It has no class token.
---@class fvlm.Siglip
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Attention heads; must divide the width.
---@field mlp? integer Features inside the MLP. Default: 4 x width.
---@field patch_size? integer Edge of the square patch that becomes one token. In pixels. Default: `14`.

---A new vision tower of SigLIP, initialized from the recipe's seed as transformers does it. It has no class token.
---@param table fvlm.Siglip
---@return fvlm.Siglip
function fvlm.siglip(table) end

---A new encoder of a text's bytes, initialized from the recipe's seed: LatentWire. It goes with fvlm.byte_latents.
---@class fvlm.Bytes
---@field max_bytes? integer Longest text; the end of a longer context is cut off. In bytes. Default: `512`.
---@field width? integer Features of a byte. Default: `256`.
---@field layers? integer Number of layers. Default: `6`.
---@field heads? integer Attention heads; must divide the width. Default: `8`.
---@field mlp? integer Features inside the MLP. Default: 4 x width.

---A new encoder of a text's bytes, initialized from the recipe's seed: LatentWire. It goes with fvlm.byte_latents.
---@param table fvlm.Bytes
---@return fvlm.Bytes
function fvlm.bytes(table) end

---A new decoder of the Llama family, initialized from the recipe's seed.
---@class fvlm.Llama
---@field tokenizer string Folder with tokenizer.json, which determines the vocabulary size.
---@field family? "llama"|"qwen2"|"qwen3" Member of the family, and the architecture as which it is exported. Default: llama.
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Query heads; must divide the width unless head_width is given.
---@field head_width? integer Features of a head. Default: width / heads.
---@field kv_heads? integer Key and value heads, shared by groups of query heads. Default: as many as heads.
---@field mlp? integer Features inside the gated MLP. Default: 4 x width.
---@field rope_theta? number Base of the rotary position angles. Default: `10000`.
---@field initializer_range? number Standard deviation of the initial matrices. A narrow decoder learns sooner from about 1 / sqrt(width). Default: 0.02.
---@field embedding_range? number Standard deviation of the initial token embedding. Default: initializer_range.
---@field tied_head? boolean Share the weights of the output head and the token embedding. Default: `true`.
---@field max_positions? integer Longest sequence of visual and text tokens. In tokens. Default: `8192`.

---A new decoder of the Llama family, initialized from the recipe's seed.
---@param table fvlm.Llama
---@return fvlm.Llama
function fvlm.llama(table) end

---A new decoder of GhostVis, initialized from the recipe's seed. Its depth decides all sizes: 64 features a layer,
---heads of 128 features, half as many key and value heads, and an MLP of 2.7 x the width, rounded up to a multiple of
---64.
---@class fvlm.GhostVis
---@field tokenizer string Folder with tokenizer.json, which determines the vocabulary size.
---@field depth integer Number of layers: 2, or a multiple of 4. In layers.
---@field max_positions? integer Longest sequence of visual and text tokens. In tokens. Default: `2048`.

---A new decoder of GhostVis, initialized from the recipe's seed. Its depth decides all sizes: 64 features a layer,
---heads of 128 features, half as many key and value heads, and an MLP of 2.7 x the width, rounded up to a multiple of
---64.
---@param table fvlm.GhostVis
---@return fvlm.GhostVis
function fvlm.ghostvis(table) end

---Turns a frame into one visual token, and a hidden state into the next query.
---@class fvlm.Foveated
---@field query_dim? integer Features of a query. Default: `384`.
---@field visual_scale? number Factor on every visual token. Default: `0.14`.
---@field attend? "deep"|"shallow" How a query attends to a frame. Default: `"deep"`.

---Turns a frame into one visual token, and a hidden state into the next query.
---@param table fvlm.Foveated
---@return fvlm.Foveated
function fvlm.foveated(table) end

---Every token of the encoder through two linears with a GELU between them, as in LLaVA.
---@class fvlm.Mlp
---@field newline? boolean A learned row behind each line of patches, as in LLaVA-NeXT, whose image processor cuts images into tiles that the decoder reads as one picture. Default: `false`.
---@field video_pooling? boolean Further rows of a frame, its patches at half the size, which stand for a frame of a video, as in LLaVA-OneVision. Default: `false`.

---Every token of the encoder through two linears with a GELU between them, as in LLaVA.
---@param table fvlm.Mlp
---@return fvlm.Mlp
function fvlm.mlp(table) end

---Learned queries attend to the tokens of a frame, and a projector takes them to the decoder.
---@class fvlm.Perceiver
---@field queries? integer Decoder rows of a frame. Default: `64`.
---@field layers? integer Layers of cross-attention and MLP. Default: `2`.
---@field heads? integer Heads; the encoder's width is divided among them. Default: `8`.
---@field projector_width? integer Features between the two linears of the projector. Default: `2048`.

---Learned queries attend to the tokens of a frame, and a projector takes them to the decoder.
---@param table fvlm.Perceiver
---@return fvlm.Perceiver
function fvlm.perceiver(table) end

---Averages the encoder's tokens of a frame in ranges, and a projector takes the means to the decoder.
---@class fvlm.AveragePool
---@field rows? integer Ranges, and so decoder rows, of a frame. Default: `64`.
---@field projector_width? integer Features between the two linears of the projector. Default: `2048`.

---Averages the encoder's tokens of a frame in ranges, and a projector takes the means to the decoder.
---@param table fvlm.AveragePool
---@return fvlm.AveragePool
function fvlm.average_pool(table) end

---Squares of patches side by side in one row each, and a linear, as in SmolVLM.
---@class fvlm.PixelShuffle
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `4`.

---Squares of patches side by side in one row each, and a linear, as in SmolVLM.
---@param table fvlm.PixelShuffle
---@return fvlm.PixelShuffle
function fvlm.pixel_shuffle(table) end

---Squares of patches side by side in one row each, a LayerNorm, and two linears with a GELU between them, as in
---InternVL.
---@class fvlm.InternVl
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.

---Squares of patches side by side in one row each, a LayerNorm, and two linears with a GELU between them, as in
---InternVL.
---@param table fvlm.InternVl
---@return fvlm.InternVl
function fvlm.internvl(table) end

---Squares of patches side by side in one row each, a linear, a LayerNorm and a softmax over a visual vocabulary, by
---which its embeddings are averaged; with learned rows around an image and between its tiles, as in Ovis2.
---@class fvlm.Ovis2
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.
---@field vocabulary? integer Words of the visual vocabulary, of which the last five are the learned rows. Default: `65536`.

---Squares of patches side by side in one row each, a linear, a LayerNorm and a softmax over a visual vocabulary, by
---which its embeddings are averaged; with learned rows around an image and between its tiles, as in Ovis2.
---@param table fvlm.Ovis2
---@return fvlm.Ovis2
function fvlm.ovis2(table) end

---Squares of patches side by side in one row each, two linears with a fixed position and a GELU between them, and
---LayerNorms, as in Granite Docling, whose encoder is read at further layers, too.
---@class fvlm.GraniteDocling
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `4`.
---@field deepstack? integer For how many of the decoder's first layers an image has further rows, made of as many other layers of the encoder. Default: `3`.

---Squares of patches side by side in one row each, two linears with a fixed position and a GELU between them, and
---LayerNorms, as in Granite Docling, whose encoder is read at further layers, too.
---@param table fvlm.GraniteDocling
---@return fvlm.GraniteDocling
function fvlm.granite_docling(table) end

---The mean of every square of patches, an RMSNorm and a matrix, as in Gemma 3. In the decoder the rows of an image
---attend to each other.
---@class fvlm.Gemma3
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.

---The mean of every square of patches, an RMSNorm and a matrix, as in Gemma 3. In the decoder the rows of an image
---attend to each other.
---@param table fvlm.Gemma3
---@return fvlm.Gemma3
function fvlm.gemma3(table) end

---Every token of the encoder through one linear, as in PaliGemma. In the decoder all rows of a prompt attend to each
---other.
---@class fvlm.PaliGemma

---Every token of the encoder through one linear, as in PaliGemma. In the decoder all rows of a prompt attend to each
---other.
---@param table table
---@return fvlm.PaliGemma
function fvlm.paligemma(table) end

---The normalized patches of each cell of an image side by side in one row, and two linears with a GELU between them,
---as in Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and PaddleOCR-VL.
---@class fvlm.Qwen2Vl
---@field factor? integer Patches along each side of a cell, as the encoder has them. Default: `2`.
---@field rms_norm? boolean Whether patches are normalized by an RMSNorm, as in Qwen2.5-VL, or by a LayerNorm. Default: `false`.
---@field norm_eps? number The epsilon of these norms; PaddleOCR-VL has 1e-5. Default: `1e-6`.
---@field deepstack? integer For how many of the decoder's first layers an image has further rows, made of as many other layers of the encoder, as in Qwen3-VL. Default: `0`.

---The normalized patches of each cell of an image side by side in one row, and two linears with a GELU between them,
---as in Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and PaddleOCR-VL.
---@param table fvlm.Qwen2Vl
---@return fvlm.Qwen2Vl
function fvlm.qwen2_vl(table) end

---The patches of each square side by side in one row, a linear that makes one row of the decoder of them, a linear
---with a LayerNorm and a GELU, and an MLP with a gate, as in GLM-OCR and GLM-4.1V.
---@class fvlm.GlmOcr
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.
---@field hidden? integer Features inside the MLP. Default: `4608`.

---The patches of each square side by side in one row, a linear that makes one row of the decoder of them, a linear
---with a LayerNorm and a GELU, and an MLP with a gate, as in GLM-OCR and GLM-4.1V.
---@param table fvlm.GlmOcr
---@return fvlm.GlmOcr
function fvlm.glm_ocr(table) end

---The normalized patches of each square side by side in one row, two linears with a GELU between them, and a linear
---that makes a row of the decoder of that, normalized; with learned rows at the end of each line of squares, before
---an image and behind it, as in HunyuanOCR.
---@class fvlm.HunyuanVl
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.
---@field norm_eps? number The epsilon of both norms. Default: `1e-5`.

---The normalized patches of each square side by side in one row, two linears with a GELU between them, and a linear
---that makes a row of the decoder of that, normalized; with learned rows at the end of each line of squares, before
---an image and behind it, as in HunyuanOCR.
---@param table fvlm.HunyuanVl
---@return fvlm.HunyuanVl
function fvlm.hunyuan_vl(table) end

---The normalized patches of each square side by side in one row, a linear that makes one patch of them, and two
---linears with a GELU between them, as in Mistral Small 3.1 and Ministral 3.
---@class fvlm.Mistral3
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.
---@field bias? boolean Whether the last two linears have biases. Default: `false`.
---@field norm_eps? number The epsilon of the RMSNorm of patches, which is that of the decoder's norms. Default: `1e-5`.

---The normalized patches of each square side by side in one row, a linear that makes one patch of them, and two
---linears with a GELU between them, as in Mistral Small 3.1 and Ministral 3.
---@param table fvlm.Mistral3
---@return fvlm.Mistral3
function fvlm.mistral3(table) end

---Squares of patches side by side in one row each, a LayerNorm, and two linears with a GELU between them, as in
---LFM2-VL, LFM3-VL and MiniCPM-V.
---@class fvlm.Lfm2Vl
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `2`.
---@field hidden? integer Numbers between the two linears. Default: `2560`.
---@field bias? boolean Whether the linears have biases. Default: `true`.
---@field norm? boolean Whether squares are normalized. Default: `true`.
---@field norm_patches? boolean Whether patches are normalized, as in LFM3-VL, and not the squares of them. Default: `false`.
---@field norm_eps? number The epsilon of this norm; LFM3-VL and MiniCPM-V have 1e-6. Default: `1e-5`.

---Squares of patches side by side in one row each, a LayerNorm, and two linears with a GELU between them, as in
---LFM2-VL, LFM3-VL and MiniCPM-V.
---@param table fvlm.Lfm2Vl
---@return fvlm.Lfm2Vl
function fvlm.lfm2_vl(table) end

---The mean of every square of patches times the root of its width, an RMSNorm without a weight and a matrix, as in
---Gemma 4.
---@class fvlm.Gemma4
---@field factor? integer Patches along each side of a square; a frame's patches have to be divisible by it in both directions. Default: `3`.
---@field standardize? boolean Subtract a bias from the means and multiply them by a scale before the norm: numbers of the imported model, which do not train. Default: `false`.
---@field norm_eps? number The epsilon of the norm. Default: `1e-6`.

---The mean of every square of patches times the root of its width, an RMSNorm without a weight and a matrix, as in
---Gemma 4.
---@param table fvlm.Gemma4
---@return fvlm.Gemma4
function fvlm.gemma4(table) end

---Learned latents attend to the bytes of a text, and an adapter takes them to the decoder, as loud as its own
---embeddings: LatentWire. The encoder is fvlm.bytes.
---@class fvlm.ByteLatents
---@field latents? integer Decoder rows of a text, which all decoders share. Default: `8`.
---@field private_latents? integer Further rows, of a pooler that each decoder has of its own. Default: `0`.
---@field heads? integer Heads of the poolers; the encoder's width is divided among them. Default: `8`.
---@field color? boolean Standardize each row, and give its columns the mean and deviation of the decoder's embeddings, which are learned from there. Default: `false`.

---Learned latents attend to the bytes of a text, and an adapter takes them to the decoder, as loud as its own
---embeddings: LatentWire. The encoder is fvlm.bytes.
---@param table fvlm.ByteLatents
---@return fvlm.ByteLatents
function fvlm.byte_latents(table) end

---Of a language model without an encoder, as `import --model` makes it of the folder of a Llama or a Qwen3: it reads
---text alone, and samples with pictures are refused.
---@class fvlm.TextOnly

---Of a language model without an encoder, as `import --model` makes it of the folder of a Llama or a Qwen3: it reads
---text alone, and samples with pictures are refused.
---@param table table
---@return fvlm.TextOnly
function fvlm.text_only(table) end

---Low-rank adapters (LoRA, DoRA) on linears of an encoder or a decoder that comes from a folder. Its own weights are
---frozen, in the run's precision or quantized as they are in the folder (QLoRA); the adapters alone have gradients
---and an optimizer, and checkpoints hold them alone.
---@class fvlm.Lora
---@field parts? string|(string)[] Which parts: vision, decoder, decoder2 and so on. Default: `{ "decoder" }`.
---@field rank integer Rank of each adapter.
---@field alpha? number What an adapter adds is scaled by alpha / rank. Default: 2 x its rank.
---@field rank_pattern? table<string, integer> Ranks of modules that have another one, by names as in `targets` or by regular expressions of them as in PEFT. The part stands before a name ("vision.*"). Each key has to match a module with an adapter, and one number at most is for a module.
---@field alpha_pattern? table<string, number> The same for alpha.
---@field dropout? number Share of the inputs of adapters that is zeroed in training. Default: `0`.
---@field targets? string|(string)[] Linears that get an adapter: q, k, v, o, gate, up, down of any family, names of modules or ends of such names as in PEFT ("self_attn.q_proj"), or all. Default: `{ "q", "v" }`.
---@field modules_to_save? string|(string)[] Modules of the part that train whole, beside the adapters: names or ends of names, none of a linear of a layer.
---@field dora? boolean DoRA: a trained magnitude for each output feature, and adapters of the direction. Dropout then applies to what the adapters read alone. Default: `false`.

---Low-rank adapters (LoRA, DoRA) on linears of an encoder or a decoder that comes from a folder. Its own weights are
---frozen, in the run's precision or quantized as they are in the folder (QLoRA); the adapters alone have gradients
---and an optimizer, and checkpoints hold them alone.
---@param table fvlm.Lora
---@return fvlm.Lora
function fvlm.lora(table) end

---Preferred backends by kind of kernel: a name, a list of names with the best first, "auto" (best score) or "measure"
---(timed on this plan's shapes; times are kept in the cache folder; not for optimizer, packer, quantizer and video,
---which are not timed). A single preference applies to every kind, "measure" then to those that are timed.
---`reference` is the engine's own plain implementation.
---@class fvlm.Kernels
---@field attention? string|(string)[] Packed self-attention and cross-attention. Default: `{ "auto" }`.
---@field loss? string|(string)[] Output head with cross-entropy. Default: `{ "auto" }`.
---@field optimizer? string|(string)[] Optimizer step. Default: `{ "auto" }`.
---@field packer? string|(string)[] Packing of samples. Default: `{ "auto" }`.
---@field quantizer? string|(string)[] Quantization of weights. Default: `{ "auto" }`.
---@field video? string|(string)[] Decoding of video files. Default: `{ "auto" }`.
---@field linear? string|(string)[] Matrix products, with bias and GELU. Default: `{ "auto" }`.
---@field rmsnorm? string|(string)[] RMSNorm, fused with the residual addition. Default: `{ "auto" }`.
---@field layernorm? string|(string)[] LayerNorm. Default: `{ "auto" }`.
---@field rope? string|(string)[] Rotary position embedding. Default: `{ "auto" }`.
---@field swiglu? string|(string)[] The decoder's gated MLP. Default: `{ "auto" }`.
---@field bias_gelu? string|(string)[] Bias and GELU of the vision tower's MLP. Default: `{ "auto" }`.
---@field layerscale_residual? string|(string)[] LayerScale, fused with the residual addition. Default: `{ "auto" }`.
---@field scaled_rows? string|(string)[] LayerScale folded into the preceding weights. Default: `{ "auto" }`.
---@field short_convolution? string|(string)[] Qwen3.5's convolution over the last few rows. Default: `{ "auto" }`.
---@field delta_rule? string|(string)[] Qwen3.5's gated delta rule, in layers without attention. Default: `{ "auto" }`.
---@field experts? string|(string)[] Mixtures of experts of few rows, in answers. Default: `{ "auto" }`.

---Optimizations that do not change results. Turning one off takes the plain path to the same result; `speed = false`
---turns all off.
---@class fvlm.Speed
---@field graphs? boolean Capture a whole step as a CUDA graph and replay it (on a GPU). Default: `true`.
---@field overlap_copies? boolean Prepare the next pack and copy it to the device while this one computes; read the loss of a step back after the next one is launched. Default: `true`.
---@field coarse_in_tower? boolean Append the static query to the tower's rows while keys and values are computed. Default: `true`.
---@field skip_last_patches? boolean Skip the patch outputs of the tower's last layer, which are unused. Default: `true`.
---@field fold_layer_scale? boolean Fold the tower's LayerScale into the preceding weights; their matrix products then add the residual, too. Default: `true`.
---@field loss_tokens_only? boolean Run the output head only on positions that have a label. Default: `true`.
---@field joint_weight_gradients? boolean Compute the decoder's weight gradients of both passes in one matrix product, if that keeps at most 1 GiB. Default: `true`.
---@field shared_preference_frames? boolean Encode the frames of a pair once for both answers. Default: `true`.
---@field shared_repeated_frames? boolean Encode a still image that is repeated to several frames once, in packs where that saves at least a quarter of the frames. Default: `true`.
---@field text_without_tower? boolean Packs of text alone skip the vision tower. Default: `true`.

---How shards are read. Changes speed and memory; the order of samples never depends on it.
---@class fvlm.Loader
---@field workers? integer|"auto" Threads that read and decode; "auto": one per core but one. Default: `"auto"`.
---@field memory_mib? integer Memory limit for decoded samples in the queue. In MiB. Default: `1024`.
---@field quarantine? fvlm.Quarantine When broken samples stop the run (exit code 4).

---How many broken samples are skipped before the run stops: more than `count` and more than `share`; or, from 50
---samples read, more than a tenth of them (or `share`, if that is larger). 10,000 unusable samples in a row also stop
---it.
---@class fvlm.Quarantine
---@field count? integer Broken samples. Default: `1000`.
---@field share? number Broken samples as a share of those read; 1: any number may be broken. Default: `0.01`.

---When checkpoints are written, and which are kept. Every stage ends with a checkpoint.
---@class fvlm.Checkpoint
---@field every? integer Interval; 0: only at the end of a stage. In steps. Default: `1000`.
---@field keep_last? integer Number of newest checkpoints to keep. Default: `3`.
---@field keep_best? integer Number of best checkpoints to keep as well, where a stage has evaluation sets. Default: `1`.
---@field best_by? string The evaluation set that determines the best. Default: the first of the stage.

---What happens when numbers go wrong. A step with a non-finite loss or gradient is never applied.
---@class fvlm.Guard
---@field nonfinite_limit? integer The run stops after this many such steps in a row, and names the last good checkpoint. In steps. Default: `10`.
---@field spike_factor? number A loss above this multiple of its running mean, or of 0.1 where that is less, is reported as a spike; 0: never. Default: `3`.
---@field rollback? boolean After a spike or the limit above, go back to the last checkpoint and skip the data in between (once for each checkpoint). Where that cannot be done, a spike is only reported, and the limit ends the run. Default: `false`.

---The quantization that a quantization_aware stage trains for: its passes compute with the linear weights rounded to
---this scheme, while checkpoints hold the original ones. `export --quantize` of such a checkpoint leaves out what
---`skip` names, too. Embeddings and output heads are never quantized.
---@class fvlm.Quantization
---@field scheme? string Name of the scheme: int8, int4, or another NAME of a plugin's kind "fvlm.quantizer/1:NAME", which `export` does not know. Default: `"int8"`.
---@field skip? string|(string)[] Modules that are not quantized, by name, with *. Each pattern but that of an output head has to match one. A number below 0 counts from the last layer: decoder.model.layers.-1.*. Default: `{ "decoder.lm_head", "vision.*" }`.

---One part of the run: data, objective and optimizer for a number of samples.
---@class fvlm.Stage
---@field name? string Names the stage's folder in the run.
---@field from? string What the stage starts from: an earlier stage, "model" (the recipe's `model`), or the path of a model directory, of a checkpoint or of a run (its newest checkpoint). Default: the previous stage; the first starts from "model".
---@field freeze? string|(string)[] Parameter groups that are frozen.
---@field data fvlm.Mix The samples.
---@field mode? "coarse_fine"|"refined"|"patches"|"resampled"|"pooled"|"latents"|"text" How the connector encodes frames in training. Default: the first of its modes.
---@field objective fvlm.NextToken|fvlm.Dpo|fvlm.Kto|fvlm.Contrastive|fvlm.Kl|fvlm.Manifold|fvlm.Grpo|(fvlm.NextToken|fvlm.Dpo|fvlm.Kto|fvlm.Contrastive|fvlm.Kl|fvlm.Manifold|fvlm.Grpo)[] The loss: a term, or a list of weighted terms that are summed.
---@field optimizer fvlm.AdamW|fvlm.Muon|fvlm.Optimizer The optimizer.
---@field schedule? fvlm.Constant|fvlm.Cosine|fvlm.Linear|fvlm.Converging|number|number[]|fun(progress: number): number The learning rate schedule. A function of the stage's progress (0 to 1) returns the factor on the base rate.
---@field samples? integer Number of samples that the stage trains on, over which the schedule runs. Required without `epochs`.
---@field epochs? integer Instead of `samples`: a multiple of the number of samples in the mix, drawn by its weights; for a single source, the number of passes. With `samples`: whichever is less. Samples are counted when the stage starts, broken ones too, whose places others take from a further pass.
---@field batch integer|fvlm.Batch Samples of one optimizer step, or limits by tokens and frames.
---@field packing? fvlm.Packing How samples are packed into fixed shapes.
---@field activation_checkpointing? "none"|"light"|"all"|fvlm.ActivationCheckpointing Which activations to recompute in the backward pass, to save memory.
---@field quantization_aware? boolean Train through the recipe's quantization, with a straight-through gradient. Default: `false`.
---@field evaluation? fvlm.Evaluation What is measured on held-out samples.
---@field control? fvlm.Control A function that may control the run between steps.

---One part of the run: data, objective and optimizer for a number of samples.
---@param name string Names the stage's folder in the run.
---@return fun(table: fvlm.Stage): fvlm.Stage
---@overload fun(name: string, table: fvlm.Stage): fvlm.Stage
function fvlm.stage(name) end

---Samples from weighted sources, and what the model sees of a sample.
---@class fvlm.Mix
---@field [integer] string|(string)[]|fvlm.Source The sources, each shuffled on its own.
---@field text_ratio? number Share of text-only samples. Weights then count among the sources with frames and among the text-only ones. Default: the weights alone decide.
---@field max_frames? integer Longer clips are subsampled evenly to this many frames. In frames. Default: `64`.
---@field max_text_tokens? integer Longest text of a sample; for pairs, of each answer. In tokens. Default: `1024`.
---@field replicate_image_frames? integer A still image is repeated to this many frames. In frames. Default: `1`.
---@field overlong? "truncate"|"drop" What happens to a text longer than max_text_tokens. Default: `"truncate"`.
---@field system? string The system turn of every chat; empty: none. Default: `"You are a helpful AI assistant."`.
---@field chat_template? string Name of a chat template of the decoder's folder, usually `default`, which formats every chat. Default: ChatML.
---@field mask_history? boolean Learn the last answer of each conversation alone; the earlier ones stand as context. Samples with `token_ids` are learnt as their `loss_mask` says. Default: `false`.
---@field negatives? integer How many of a retrieval sample's negatives are read, at most: the first ones. Default: 1.
---@field boxes? "pixels"|"norm1000"|"norm1000_yx"|"norm1"|"loc"|"qwen2_vl"|"internvl" How boxes and points of a sample's `objects` are written; docs/data.md shows each way. Default: as the models of the decoder's family write them, where that is known.
---@field prompts? table<string, string> Text of an empty user turn, by the sample's source; `default` for other sources.
---@field teacher_prompt? string What a teacher with a prompt of its own reads in place of the first user turn, without frames; the other turns are the same. `{name}` stands for a field of the sample. For samples with a context, a question and answers it takes the place of `questions.prompt`: `{source}` stands for what the encoder of bytes reads, and the rest may have special tokens.
---@field questions? fvlm.Questions How samples with a context, a question and answers are written. Default: as turns of a chat, the user's being `Context: ...` and `Question: ...`; where an encoder reads bytes, with the defaults of its fields.
---@field decoders? table<string, fvlm.DecoderTexts> What the model's further decoders read otherwise: their own chats, special tokens and prompts of teachers. Default: the same as `decoder`.
---@field preprocessed? string Folder that `preprocess` wrote for this mix; read instead of the sources while its manifest matches them.
---@field documents? "joined"|"isolated" Samples are documents (KEY.txt, or `text` of KEY.json; a conversation is one, too), each from the tokenizer's bos token on. Training reads one stream of them, cut into rows of max_text_tokens: a row counts as a sample. An evaluation cuts each document by itself. Default: samples are conversations.

---Samples from weighted sources, and what the model sees of a sample.
---@param table fvlm.Mix
---@return fvlm.Mix
function fvlm.mix(table) end

---One set of shards in a mix.
---@class fvlm.Source
---@field [integer] string Samples with images or videos, as they lie: WebDataset .tar, .jsonl, .json, .tsv or .parquet, folders; .gz and .zst of them. Patterns with *, ? and {0000..0999}.
---@field text? string|(string)[] In place of shards: the same of text-only samples.
---@field weight? number|number[]|fun(progress: number): number Share of the samples, relative to the other weights of the mix. May be a function of the stage's progress. Default: `1`.
---@field epochs? integer Passes before the source is exhausted; 0: as many as needed. Default: `0`.
---@field fields? table<string, string> Maps parts of a sample to keys of the shard's JSON, where those differ. Parts: `user` (the user's turn; without it `question`, `prompt`, `instruction` or `query`), `assistant` (the answer), `answers` (all answers that an evaluation takes for right; without `assistant` the most frequent is learnt), `context` (a text that `question` is about, with `answers`; written as `questions` of the mix says. Of HotpotQA's paragraphs those sentences are read that `supporting_facts` names, and their neighbours), `question` (the question about `context`), `supporting_facts` (which sentences of HotpotQA's `context` support the answer), `caption` (a text without a question), `chosen_assistant` (the preferred answer of a pair), `rejected_assistant` (the other answer of a pair), `chosen` (the preferred answer of a pair: a text, a turn, or all turns; `prompt` and the like lead to it), `rejected` (the other answer, in the same form), `completion` (the answer to `prompt`, in the same form), `prompt` (what both answers of `chosen` and `rejected`, or the `completion`, are to: a text, or turns), `label` (whether the answer is a good one, for fvlm.kto: true or false), `kto_tag` (the same), `query` (of a retrieval sample, what finds: a text, a list of turns, or { text, image }), `anchor` (the same), `query_image` (its picture, or a list of them), `positive` (what `query` is to find, in the same form; without it, the pictures of the sample), `positive_image` (its picture, or a list of them), `negative` (what `query` is not to find, in the same form, or a list; also `negative_1`, `negative_2`, ...), `negative_image` (its picture, or a list of them), `negatives` (a list of them), `texts` (a conversation as a list of { user, assistant }), `history` (turns before the question: a list of questions with their answers), `input` (what goes behind a user's `instruction`), `rejected_response` (the answer of a pair that would stand in place of the last one of `messages`), `rejected_messages` (the same pair's conversation with the other answer), `system` (the system turn of a conversation), `image` (a path, a data: URL or the bytes of an image, where a shard's samples name their files; or a list), `images` (the same), `video` (a path or the bytes of a video, likewise), `videos` (the same, a list of one), `file_name` (the path of an image or video, as Hugging Face's metadata.jsonl names it), `file_names` (a list of them), `objects` (names and boxes that stand for `<ref-object>` and `<bbox>` in the texts), `messages` (a conversation as a list of { role, content }), `conversations` (a conversation as a list of { from, value }), `text` (a document, where the mix has `documents`), `source` (the name that `prompts` goes by), `frame_count` (how many frames belong to the sample), `token_ids` (pretokenized text, with loss_mask), `loss_mask` (which of token_ids have a loss), `choices` (the options of a multiple-choice question), `answer` (the right option: its number from 0, its letter or its text; of a `question` without `answers`, its answer).
---@field root? string The folder that paths of images and videos in JSON files are relative to. Default: the folder of each file.
---@field held_out? number Share of the samples that is held out, evenly spread over them: the data of an evaluation set read those alone, and the data of a stage all others. Both have to name the same share.
---@field name? string Name of the source for `prompts` and statistics, for samples that have no `source`.

---How samples with a context, a question and answers are written.
---@class fvlm.Questions
---@field source? string What an encoder of bytes reads, or in a text-only source the decoder: {context} and {question} stand for those of the sample. Default: `"Context: {context}\nQuestion: {question}\n"`.
---@field prompt? string What stands around the source where the decoder reads it as text, such as a chat with its special tokens; {source} stands for it. Default: `"{source}"`.
---@field anchor? string Text behind the source or its rows, before the answer. Spaces at its end are tokenized with the answer. Default: `"Answer: "`.
---@field eos? string The special token that ends an answer, and is learnt with it. Default: `"<|im_end|>"`.
---@field bos? string The special token that texts of the decoder begin with; empty: none.
---@field bos_place? "first"|"after_prefix" Where that token stands in texts with rows. Default: `"first"`.
---@field max_answer_tokens? integer Longer answers are cut off, in training. In tokens. Default: `32`.
---@field max_source_tokens? integer The decoder reads this much of a source as text: to compare with as many rows. Default: all of it. In tokens.

---What a further decoder reads otherwise than the mix says.
---@class fvlm.DecoderTexts
---@field system? string As in the mix.
---@field chat_template? string As in the mix.
---@field teacher_prompt? string As in the mix.
---@field questions? fvlm.Questions As in the mix, all of them but `source`, which one encoder reads for all decoders.

---Cross-entropy of the next token, mean over the labels it selects. Beside fvlm.dpo it learns the chosen answers
---alone.
---@class fvlm.NextToken
---@field on? "all"|"answer" Which labels. Default: `"answer"`.
---@field first? number|number[]|fun(progress: number): number Only the first N labels of each span. May be a function of the stage's progress, whose values are rounded; `first.TERM` in the metrics then says where it is. In tokens.
---@field position_weights? (number)[] Weights of the first, second, ... label of each span; further labels have the last weight. The term is the weighted mean. Default: all labels count alike.
---@field pass? "fine"|"coarse" Which of the two passes. A coarse term of weight x is what the public code calls lambda_coarse = x. Default: `"fine"`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Cross-entropy of the next token, mean over the labels it selects. Beside fvlm.dpo it learns the chosen answers
---alone.
---@param table fvlm.NextToken
---@return fvlm.NextToken
function fvlm.next_token(table) end

---Preference optimization on pairs of answers. The reference, where the loss has one, is the frozen model that the
---stage starts from. docs/preference-losses.md has the formulas.
---@class fvlm.Dpo
---@field loss? "sigmoid"|"ipo"|"hinge"|"kto"|"simpo"|"orpo" Which loss. Default: sigmoid.
---@field beta? number Strength of the KL penalty towards the reference; of simpo and orpo, the scale of the comparison. Default: `0.1`.
---@field label_smoothing? number Of sigmoid and simpo: the share of pairs whose preference is taken to be wrong. Default: 0.
---@field gamma? number Of simpo: the margin by which the chosen answer's reward is to be larger. Default: 0.5.
---@field cache_reference? boolean Compute the reference log-probabilities once and cache them on disk, instead of keeping a second model in memory. Default: `false`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Preference optimization on pairs of answers. The reference, where the loss has one, is the frozen model that the
---stage starts from. docs/preference-losses.md has the formulas.
---@param table fvlm.Dpo
---@return fvlm.Dpo
function fvlm.dpo(table) end

---Preference optimization on single answers that are said to be good or not. The reference is the frozen model that
---the stage starts from. docs/preference-losses.md has the formulas.
---@class fvlm.Kto
---@field beta? number Strength of the KL penalty towards the reference. Default: `0.1`.
---@field desirable_weight? number Factor on the losses of good answers. Default: `1`.
---@field undesirable_weight? number Factor on the losses of the others. Its ratio to the other makes up for data with many more of one kind. Default: `1`.
---@field cache_reference? boolean Compute the reference log-probabilities once and cache them on disk, instead of keeping a second model in memory. Default: `false`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Preference optimization on single answers that are said to be good or not. The reference is the frozen model that
---the stage starts from. docs/preference-losses.md has the formulas.
---@param table fvlm.Kto
---@return fvlm.Kto
function fvlm.kto(table) end

---Trains embeddings, as /v1/embeddings answers them: each query's positive is to be nearer to it than the other
---positives and negatives of its pack. docs/embeddings.md has the formula, and the way from data to vectors.
---@class fvlm.Contrastive
---@field temperature? number What cosine similarities are divided by before the softmax. Default: `0.02`.
---@field symmetric? boolean The mean of this loss and of the one that lets each positive find its query among the pack's queries. Default: `false`.
---@field dimensions? integer|(integer)[] Matryoshka: the loss is the sum over the whole embeddings and over the first so many numbers of each, which /v1/embeddings then answers for the same `dimensions`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Trains embeddings, as /v1/embeddings answers them: each query's positive is to be nearer to it than the other
---positives and negatives of its pack. docs/embeddings.md has the formula, and the way from data to vectors.
---@param table fvlm.Contrastive
---@return fvlm.Contrastive
function fvlm.contrastive(table) end

---Kullback-Leibler divergence from a teacher's next-token distribution.
---@class fvlm.Kl
---@field teacher? string What an earlier stage left, by its name, or a model directory, a checkpoint or a run (its newest checkpoint) with the same tokens and rows of the embedding. It is frozen. With reads = "teacher_prompt" it may be left out: the model itself is the teacher, without gradients.
---@field reads? "sample"|"teacher_prompt" What the teacher reads. Default: sample.
---@field on? "all"|"answer" Which labels. Default: `"answer"`.
---@field first? number|number[]|fun(progress: number): number Only the first N labels of each span. May be a function of the stage's progress, whose values are rounded; `first.TERM` in the metrics then says where it is. In tokens.
---@field position_weights? (number)[] Weights of the first, second, ... label of each span; further labels have the last weight. The term is the weighted mean. Default: all labels count alike.
---@field temperature? number Temperature of both distributions; above 1 is softer. The divergence is multiplied by its square, so that gradients keep their size. Default: `1`.
---@field cache_teacher? boolean Compute the teacher's hidden states of the labels once, before training, and cache them on disk. Steps then only apply its output head to them, and packs hold no texts of the teacher. Where the model is its own teacher, its decoder must be frozen. Default: `false`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Kullback-Leibler divergence from a teacher's next-token distribution.
---@param table fvlm.Kl
---@return fvlm.Kl
function fvlm.kl(table) end

---Keeps the connector's rows among those of the decoder's embedding: over the visual rows of a text, the mean squared
---difference of the columns' means from the embedding's, and of their standard deviations. Mean over the texts with
---two visual rows or more.
---@class fvlm.Manifold
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Keeps the connector's rows among those of the decoder's embedding: over the visual rows of a text, the mean squared
---difference of the columns' means from the embedding's, and of their standard deviations. Mean over the texts with
---two visual rows or more.
---@param table fvlm.Manifold
---@return fvlm.Manifold
function fvlm.manifold(table) end

---Group relative policy optimization: the model answers each prompt several times, and answers that earn more than
---the others become likelier. docs/rewards.md has the formulas.
---@class fvlm.Grpo
---@field answers? integer How many answers are drawn to each prompt. Default: `8`.
---@field max_new_tokens? integer Longest answer; shorter where data.max_text_tokens leaves less behind the prompt. In tokens. Default: `128`.
---@field reward? "exact_match"|"f1"|"anls"|"rouge_l"|"character_accuracy"|"vqa_accuracy"|"relaxed_accuracy"|"contains"|"iou"|"box_accuracy"|fun(answer: { prompt: string, text: string, expected: string[], tokens: integer, ended: boolean, key: string, source: string, exact_match: number, f1: number, anls: number, rouge_l: number, character_accuracy: number, vqa_accuracy: number, relaxed_accuracy: number, contains: number, iou: number, box_accuracy: number }): number What an answer earns: how near it is to the sample's own, or a function of the answer. Default: `"exact_match"`.
---@field loss? "grpo"|"dr_grpo" How advantages are scaled and tokens weighted. Default: `"grpo"`.
---@field kl? number Strength of the KL penalty towards the frozen model that the stage starts from; 0: no such model. Default: `0`.
---@field show? integer Of how many prompts of a logged step the answers are written to the stage's rollouts.jsonl. Default: `1`.
---@field weight? number|number[]|fun(progress: number): number Factor on this term in the sum. May be a function of the stage's progress. Default: `1`.

---Group relative policy optimization: the model answers each prompt several times, and answers that earn more than
---the others become likelier. docs/rewards.md has the formulas.
---@param table fvlm.Grpo
---@return fvlm.Grpo
function fvlm.grpo(table) end

---Adam with decoupled weight decay.
---@class fvlm.AdamW
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Decoupled weight decay, for all groups or by group: of every parameter, norms and biases, too. Default: 0.01.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" Dtype of the optimizer's moments. Master weights are always fp32. Default: `"fp32"`.
---@field betas? (number)[] Decay of the first and of the second moment. Default: `{ 0.9, 0.999 }`.
---@field eps? number Added to the root of the second moment. Default: `1e-8`.
---@field groups? table<string, fvlm.AdamGroup> Parameter groups with other betas or another eps.

---Adam with decoupled weight decay.
---@param table fvlm.AdamW
---@return fvlm.AdamW
function fvlm.adamw(table) end

---Settings of AdamW for one parameter group.
---@class fvlm.AdamGroup
---@field betas? (number)[] Decay of the first and of the second moment. Default: that of all groups.
---@field eps? number Added to the root of the second moment. Default: that of all groups.

---Momentum orthogonalized by Newton-Schulz, for the matrices inside the layers.
---@class fvlm.Muon
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Decoupled weight decay, for all groups or by group: of every parameter, norms and biases, too. Default: 0.01.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" Dtype of the optimizer's moments. Master weights are always fp32. Default: `"fp32"`.
---@field momentum? number Decay of the momentum. Default: `0.95`.
---@field momentum_warmup? fvlm.MomentumWarmup Start with less momentum. Default: none.
---@field groups? string|(string)[] Parameter groups whose matrices Muon updates; all of the other groups belongs to `others`. Default: all groups.
---@field nesterov? boolean Use Nesterov momentum. Default: `true`.
---@field eps? number Added to the norm that a matrix is divided by. Default: `1e-7`.
---@field others fvlm.MuonOthers AdamW for all other parameters: embeddings, head and vectors.

---Momentum orthogonalized by Newton-Schulz, for the matrices inside the layers.
---@param table fvlm.Muon
---@return fvlm.Muon
function fvlm.muon(table) end

---A linear rise of Muon's momentum to its own value.
---@class fvlm.MomentumWarmup
---@field from? number Momentum of the stage's first step. Default: `0.85`.
---@field steps? integer Steps until the momentum has its own value. In steps. Default: `300`.

---AdamW for the parameters that Muon does not update: embeddings, head and vectors.
---@class fvlm.MuonOthers
---@field lr number|table<string, number> Base learning rate, for all groups or by group.
---@field betas? (number)[] Decay of the first and of the second moment. Default: `{ 0.9, 0.999 }`.
---@field eps? number Added to the root of the second moment. Default: `1e-8`.
---@field groups? table<string, fvlm.AdamGroup> Parameter groups with other betas or another eps.

---Settings of AdamW for one parameter group.
---@class fvlm.AdamGroup
---@field betas? (number)[] Decay of the first and of the second moment. Default: that of all groups.
---@field eps? number Added to the root of the second moment. Default: that of all groups.

---An optimizer algorithm of a plugin, by name.
---@class fvlm.Optimizer
---@field algorithm? string Name of the algorithm: the NAME of the plugin's kind "fvlm.optimizer/1:NAME".
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Weight decay, for all groups or by group, if the algorithm has it. Default: the algorithm's own.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" Dtype of the optimizer's moments. Master weights are always fp32. Default: `"fp32"`.
---@field options? table<string, number> The algorithm's own hyperparameters. The plugin checks their names and ranges.

---An optimizer algorithm of a plugin, by name.
---@param algorithm string Name of the algorithm: the NAME of the plugin's kind "fvlm.optimizer/1:NAME".
---@return fun(table: fvlm.Optimizer): fvlm.Optimizer
---@overload fun(algorithm: string, table: fvlm.Optimizer): fvlm.Optimizer
function fvlm.optimizer(algorithm) end

---Constant at the base rate.
---@class fvlm.Constant
---@field warmup? number Fraction of the stage's steps with linear warm-up from 0. Default: `0`.

---Constant at the base rate.
---@param table fvlm.Constant
---@return fvlm.Constant
function fvlm.constant(table) end

---Decays along half a cosine.
---@class fvlm.Cosine
---@field warmup? number Fraction of the stage's steps with linear warm-up from 0. Default: `0`.
---@field to_share? number Final rate, as a fraction of the base rate. Default: `0.1`.

---Decays along half a cosine.
---@param table fvlm.Cosine
---@return fvlm.Cosine
function fvlm.cosine(table) end

---Decays linearly.
---@class fvlm.Linear
---@field warmup? number Fraction of the stage's steps with linear warm-up from 0. Default: `0`.
---@field to_share? number Final rate, as a fraction of the base rate. Default: `0`.

---Decays linearly.
---@param table fvlm.Linear
---@return fvlm.Linear
function fvlm.linear(table) end

---Each group follows half a cosine from its own base rate, down or up, to one common rate.
---@class fvlm.Converging
---@field warmup? number Fraction of the stage's steps with linear warm-up from 0. Default: `0`.
---@field to number The common final learning rate.

---Each group follows half a cosine from its own base rate, down or up, to one common rate.
---@param table fvlm.Converging
---@return fvlm.Converging
function fvlm.converging(table) end

---The samples of one optimizer step: it takes samples until a limit would be exceeded.
---@class fvlm.Batch
---@field samples? integer Maximum number of samples. Alone: the exact number, which fixes the number of steps.
---@field tokens? integer Maximum number of tokens, visual and text together.
---@field frames? integer Maximum number of frames.

---The fixed capacity of one pack, which is the micro-batch: it affects speed and memory, not results. With tokens =
---"memory" it is as large as memory allows when training starts; `train --find-batch` measures packs of several
---sizes.
---@class fvlm.Packing
---@field frames? integer|"auto" Frame slots of a pack; "auto": in proportion to its tokens, as in the first 256 samples, and no fewer than the largest sample needs. Default: `"auto"`.
---@field tokens? integer|"auto"|"memory" Token slots of a pack, visual and text together; "auto": 8,192, or more if the largest sample needs it; "memory": as many as the device's memory holds, with frames in proportion, and no more than a step needs. That is estimated once, from what is free when a run starts, or from `train --memory-mib`; a resumed run keeps it. `batch` is what it was: a step is divided into fewer packs. Default: `"auto"`.
---@field segments? integer|"auto" Maximum number of samples in a pack, the micro-batch size; "auto": as many as fit. Default: `"auto"`.
---@field window? integer Number of upcoming samples that the packer may choose from; 1: in order. In samples. Default: `256`.

---Which layers recompute their activations in the backward pass; "light": all layers, but only the outputs of norms,
---GELU and SwiGLU, which costs little time. One value for both towers, or one for each.
---@class fvlm.ActivationCheckpointing
---@field vision? "none"|"light"|"all"|{ every: integer }|{ layers: integer[] } Layers of the vision tower, counted from 0. Default: `"none"`.
---@field decoder? "none"|"light"|"all"|{ every: integer }|{ layers: integer[] } Layers of the decoder, counted from 0. Default: `"none"`.

---What is measured on held-out samples, and when. Always at the end of the stage too.
---@class fvlm.Evaluation
---@field every? integer How often; 0: only at the end of the stage. In steps. Default: `0`.
---@field [integer] fvlm.EvaluationSet The held-out sets.

---Held-out samples and what is measured on them.
---@class fvlm.EvaluationSet
---@field name? string Name of the set in metrics and the report.
---@field data fvlm.Mix The samples.
---@field measure? "loss"|"choice"|"preference"|"answer"|"bits_per_byte"|"iou"|"retrieval" The main figure. Default: `"loss"`.
---@field modes? "coarse_fine"|"refined"|"coarse_only"|"autoregressive"|"patches"|"resampled"|"pooled"|"latents"|"fp16"|"int8"|"int6"|"int4"|"text"|("coarse_fine"|"refined"|"coarse_only"|"autoregressive"|"patches"|"resampled"|"pooled"|"latents"|"fp16"|"int8"|"int6"|"int4"|"text")[] How frames are encoded; the first mode determines the best checkpoint. Default: the first of the connector's modes.
---@field samples? integer How many samples, always the same; 0: all. Default: `0`.
---@field max_new_tokens? integer Longest answer that is generated for the measures "answer" and "iou". Default: 128. In tokens.
---@field entropy? boolean Also measure the attention entropy over a frame. Default: `false`.
---@field show? integer Number of samples shown in the report with the model's answer and its attention over frames. Default: `0`.

---Held-out samples and what is measured on them.
---@param name string Name of the set in metrics and the report.
---@return fun(table: fvlm.EvaluationSet): fvlm.EvaluationSet
---@overload fun(name: string, table: fvlm.EvaluationSet): fvlm.EvaluationSet
function fvlm.evaluation(name) end

---A function that is called between steps and may control the run.
---@class fvlm.Control
---@field every integer How often it is called. In steps.
---@field run fun(m: table<string, number>, memory: table): fvlm.Action|fvlm.Action[]|nil Gets the metrics and a table that is kept between calls (plain values, saved with checkpoints). m has step and what a line of metrics has, but for times and memory: m.loss, m.gradient_norm, m.samples, m["lr.GROUP"] and so on. Where no step was applied since the last line, m.loss and m.gradient_norm are not a number. It also has the stage's last evaluation, which comes first where both are due: m["evaluation.SET.MODE.FIGURE"], and m["evaluation.SET.FIGURE"] for a set with one mode; nil before the first. Returns fvlm.stop_stage(), fvlm.save(), fvlm.scale_lr(0.5), a list of these, or nothing. Results are journaled: resuming under the same plan replays them.

---End the stage here and start the next one.
---@class fvlm.StopStage

---End the stage here and start the next one.
---@return fvlm.StopStage
function fvlm.stop_stage() end

---Write a checkpoint now.
---@class fvlm.Save

---Write a checkpoint now.
---@return fvlm.Save
function fvlm.save() end

---Multiply the learning rate of every group, from here to the end of the stage.
---@class fvlm.ScaleLr
---@field factor? number 0.5 halves it.

---Multiply the learning rate of every group, from here to the end of the stage.
---@param factor number 0.5 halves it.
---@return fvlm.ScaleLr
function fvlm.scale_lr(factor) end

return fvlm
