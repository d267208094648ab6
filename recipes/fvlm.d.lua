---@meta fvlm
-- Made from the engine's schema by `fvlm-engine recipe stubs`; do not edit.

---@class fvlm
local fvlm = {}

---What `--arg name=value` says on the command line, in the type of the default.
---@generic T
---@param name string
---@param default? T
---@return T
function fvlm.arg(name, default) end

---A sum of weighted objectives; a plain list does the same.
---@param terms (fvlm.NextToken|fvlm.Dpo|fvlm.Kl)[]
---@return (fvlm.NextToken|fvlm.Dpo|fvlm.Kl)[]
function fvlm.sum(terms) end

---What a `control` function may answer.
---@alias fvlm.Action fvlm.StopStage|fvlm.Save|fvlm.ScaleLr

---The whole run: the model, what all stages share, and the stages in the order they run.
---@class fvlm.Recipe
---@field name string Names the run's folder.
---@field seed? integer Data order, packing and initialisation derive from it. Default: `42`.
---@field precision? "bf16"|"fp16"|"tf32"|"fp32" What the model computes in. Default: `"bf16"`.
---@field gradients? "fp32"|"bf16" What the gradients of parameters are held in until the step is taken. Default: `"fp32"`.
---@field deterministic? boolean Same bits in each run on a GPU too, at some cost in speed. A CPU run always repeats. Default: `false`.
---@field model fvlm.Model The model.
---@field kernels? string|(string)[]|fvlm.Kernels Which backends are wanted.
---@field speed? boolean|fvlm.Speed Switches for work saved.
---@field loader? fvlm.Loader How shards are read.
---@field checkpoint? fvlm.Checkpoint When the run is saved.
---@field guard? fvlm.Guard What happens when numbers go wrong.
---@field quantization? string|fvlm.Quantization What stages that are quantization_aware round weights to.
---@field log_every? integer How often metrics are written. In steps. Default: `10`.
---@field [integer] fvlm.Stage The stages, in the order they run.

---The whole run: the model, what all stages share, and the stages in the order they run.
---@param table fvlm.Recipe
---@return fvlm.Recipe
function fvlm.recipe(table) end

---The model: a vision tower, a decoder and the connector between them.
---@class fvlm.Model
---@field vision string|fvlm.Dinov2 The vision tower: a Hugging Face folder (config.json, model.safetensors), or a fresh one.
---@field decoder string|fvlm.Llama The language model: a Hugging Face folder with its tokenizer, or a fresh one.
---@field connector? fvlm.Connector Always trained from a fresh start, unless a stage's `from` brings one.
---@field image_size? integer Edge of the square that frames are brought to. In pixels. Default: `224`.
---@field groups? table<string, string|(string)[]> Parameter groups besides connector, vision and decoder: patterns (with *) of parameter names as in a model directory. What a pattern matches leaves those three; no two may match one parameter.

---The model: a vision tower, a decoder and the connector between them.
---@param table fvlm.Model
---@return fvlm.Model
function fvlm.model(table) end

---A fresh DINOv2 vision tower, initialised from the recipe's seed.
---@class fvlm.Dinov2
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Attention heads; they share the width evenly.
---@field mlp? integer Features inside the MLP. Default: 4 x width.
---@field patch_size? integer Edge of the square that becomes one token. In pixels. Default: `14`.

---A fresh DINOv2 vision tower, initialised from the recipe's seed.
---@param table fvlm.Dinov2
---@return fvlm.Dinov2
function fvlm.dinov2(table) end

---A fresh decoder of the Llama family, initialised from the recipe's seed.
---@class fvlm.Llama
---@field tokenizer string Folder with tokenizer.json; the vocabulary has its size.
---@field width integer Features of a token.
---@field layers integer Number of layers.
---@field heads integer Query heads; they share the width evenly.
---@field kv_heads? integer Key and value heads, shared by groups of query heads. Default: as many as heads.
---@field mlp? integer Features inside the gated MLP. Default: 4 x width.
---@field rope_theta? number Base of the rotary position angles. Default: `10000`.
---@field tied_head? boolean The output head is the token embedding. Default: `true`.
---@field max_positions? integer Longest sequence of visual and text tokens. In tokens. Default: `8192`.

---A fresh decoder of the Llama family, initialised from the recipe's seed.
---@param table fvlm.Llama
---@return fvlm.Llama
function fvlm.llama(table) end

---What turns a frame into one visual token, and a hidden state into the next query.
---@class fvlm.Connector
---@field query_dim? integer Features of a query. Default: `384`.
---@field visual_scale? number Factor on every visual token. Default: `0.14`.
---@field attend? "deep"|"shallow" How a query reads a frame. Default: `"deep"`.

---Which backends are wanted, by kind of kernel: a name, a list of names with the best first, "auto" (best score) or
---"measure" (timed on this plan's shapes; the cache folder keeps the times; not for optimizer, packer, quantizer and
---video, which are not timed). One wish alone is for every kind, "measure" then for those that are timed. `reference`
---is the engine's own plain one.
---@class fvlm.Kernels
---@field attention? string|(string)[] Packed self-attention and cross-attention. Default: `{ "auto" }`.
---@field loss? string|(string)[] Output head with cross-entropy. Default: `{ "auto" }`.
---@field optimizer? string|(string)[] The optimizer's step. Default: `{ "auto" }`.
---@field packer? string|(string)[] How samples are put into packs. Default: `{ "auto" }`.
---@field quantizer? string|(string)[] Weights in few bits. Default: `{ "auto" }`.
---@field video? string|(string)[] Pictures out of video files. Default: `{ "auto" }`.
---@field linear? string|(string)[] Matrix products, with bias and GELU. Default: `{ "auto" }`.
---@field rmsnorm? string|(string)[] RMSNorm, with the residual added. Default: `{ "auto" }`.
---@field layernorm? string|(string)[] LayerNorm. Default: `{ "auto" }`.
---@field rope? string|(string)[] Rotary positions. Default: `{ "auto" }`.
---@field swiglu? string|(string)[] The decoder's gated MLP. Default: `{ "auto" }`.
---@field bias_gelu? string|(string)[] Bias and GELU of the vision tower's MLP. Default: `{ "auto" }`.
---@field layerscale_residual? string|(string)[] LayerScale with the residual added. Default: `{ "auto" }`.
---@field scaled_rows? string|(string)[] LayerScale folded into the weights before it. Default: `{ "auto" }`.

---Work that need not be done, or not one after the other. Each switch that is off takes the plain path to the same
---result. `speed = false` turns all off.
---@class fvlm.Speed
---@field graphs? boolean Record a whole step once and replay it (on a GPU). Default: `true`.
---@field overlap_copies? boolean Prepare the next pack and copy it to the device while this one computes; a step's loss is read when the next one is on its way. Default: `true`.
---@field coarse_in_tower? boolean Let the static query ride through the tower as one more row while keys and values are computed. Default: `true`.
---@field skip_last_patches? boolean Compute no patch outputs in the tower's last layer, which nobody reads. Default: `true`.
---@field fold_layer_scale? boolean Fold the tower's LayerScale into the weights before it; their products add the residual as well. Default: `true`.
---@field loss_tokens_only? boolean Run the output head where a token with a loss follows, not on all text. Default: `true`.
---@field joint_weight_gradients? boolean One product for the decoder's weight gradients of both passes, where no more than 1 GiB has to wait for it. Default: `true`.
---@field shared_preference_frames? boolean Encode the frames of a pair once for both answers. Default: `true`.
---@field text_without_tower? boolean Packs of text alone skip the vision tower. Default: `true`.

---How shards are read. Changes speed and memory; the order of samples never depends on it.
---@class fvlm.Loader
---@field workers? integer|"auto" Threads that read and decode; "auto": one for each core but one. Default: `"auto"`.
---@field memory_mib? integer Most memory for decoded samples that wait. In MiB. Default: `1024`.
---@field quarantine? fvlm.Quarantine When broken samples end the run (exit code 4).

---How many broken samples are skipped before the run stops: more than `count` and more than `share`; or, from 50
---samples read, more than a tenth of them (or `share`, where that is larger). 10,000 in a row of which none can be
---used end it, too.
---@class fvlm.Quarantine
---@field count? integer Broken samples. Default: `1000`.
---@field share? number Broken samples as a share of those read; 1: any number may be broken. Default: `0.01`.

---When the run is saved, and which saves are kept. A stage is always saved at its end.
---@class fvlm.Checkpoint
---@field every? integer How often; 0: only at the end of a stage. In steps. Default: `1000`.
---@field keep_last? integer The newest so many are kept. Default: `3`.
---@field keep_best? integer The best so many are kept too, where a stage has evaluation sets. Default: `1`.
---@field best_by? string The evaluation set that decides. Default: the first of the stage.

---What happens when numbers go wrong. A step with a non-finite loss or gradient is never applied.
---@class fvlm.Guard
---@field nonfinite_limit? integer The run stops after so many such steps in a row, and names the last good checkpoint. In steps. Default: `10`.
---@field spike_factor? number A loss above this many times its running mean is reported as a spike; 0: never. Default: `3`.
---@field rollback? boolean After a spike or the limit above, go back to the last checkpoint and skip the data in between (once for each checkpoint). Default: `false`.

---The few bits that weights are rounded to while a stage that is quantization_aware trains. Only there: `export` does
---not quantize yet, and a recipe without such a stage is refused.
---@class fvlm.Quantization
---@field scheme? string As a plugin names it: kind "fvlm.quantizer/1:NAME". Default: `"int8"`.
---@field skip? string|(string)[] Modules that stay as they are, by name, with *. Default: `{ "decoder.lm_head", "vision.*" }`.

---One part of the run: data, objective and optimizer for so many samples.
---@class fvlm.Stage
---@field name? string Names the stage's folder in the run.
---@field from? string What the stage starts from: an earlier stage, "model" (the towers as the recipe names them), or the path of a checkpoint or model directory. Default: the stage before it; the first starts from "model".
---@field freeze? string|(string)[] Parameter groups that are not trained.
---@field data fvlm.Mix The samples.
---@field mode? "coarse_fine"|"refined" How the foveated connector reads frames in training. Default: `"coarse_fine"`.
---@field objective fvlm.NextToken|fvlm.Dpo|fvlm.Kl|(fvlm.NextToken|fvlm.Dpo|fvlm.Kl)[] What is minimised: a term, or a list of weighted terms that are summed.
---@field optimizer fvlm.AdamW|fvlm.Muon|fvlm.Optimizer How parameters are stepped.
---@field schedule? fvlm.Constant|fvlm.Cosine|fvlm.Linear|fvlm.Converging|number|number[]|fun(progress: number): number How the learning rate changes on the way. A function of the stage's progress (0 to 1) gives the factor on the base rate.
---@field samples? integer How many samples the stage sees; the schedule spans them. Needed where `epochs` is not there.
---@field epochs? integer In place of `samples`: so many times as many samples as the mix has, drawn by its weights; of a single source that many passes. Beside `samples`: whichever is less. They are counted when the stage begins.
---@field batch integer|fvlm.Batch Samples of one optimizer step, or limits by tokens and frames.
---@field packing? fvlm.Packing How samples are packed into fixed shapes.
---@field activation_checkpointing? "none"|"light"|"all"|fvlm.ActivationCheckpointing Memory for time.
---@field quantization_aware? boolean Train through the recipe's quantization, with a straight-through gradient. Default: `false`.
---@field evaluation? fvlm.Evaluation What is measured on held-out samples.
---@field control? fvlm.Control A function that looks at the run between steps.

---One part of the run: data, objective and optimizer for so many samples.
---@param name string Names the stage's folder in the run.
---@return fun(table: fvlm.Stage): fvlm.Stage
---@overload fun(name: string, table: fvlm.Stage): fvlm.Stage
function fvlm.stage(name) end

---Samples from weighted sources, and what the model sees of a sample.
---@class fvlm.Mix
---@field [integer] string|(string)[]|fvlm.Source The sources, each shuffled on its own.
---@field text_ratio? number Share of text-only samples. Weights then count among the sources with frames and among the text-only ones. Default: the weights alone decide.
---@field max_frames? integer Longer clips are sampled evenly down to this. In frames. Default: `64`.
---@field max_text_tokens? integer Longest text of a sample, of each answer of a pair. In tokens. Default: `1024`.
---@field replicate_image_frames? integer A still image is repeated to so many frames. In frames. Default: `1`.
---@field overlong? "truncate"|"drop" What happens to a text longer than max_text_tokens. Default: `"truncate"`.
---@field system? string The system turn of every chat; empty: none. Default: `"You are a helpful AI assistant."`.
---@field prompts? table<string, string> What an empty user turn says, by the sample's source; `default` for sources not named.
---@field preprocessed? string Folder that `preprocess` wrote for this mix; read in place of the sources while its manifest fits them.

---Samples from weighted sources, and what the model sees of a sample.
---@param table fvlm.Mix
---@return fvlm.Mix
function fvlm.mix(table) end

---One set of shards in a mix.
---@class fvlm.Source
---@field [integer] string WebDataset tar files with images or videos; patterns with *, ? and {0000..0999}.
---@field text? string|(string)[] In place of shards: tar files of text-only samples.
---@field weight? number|number[]|fun(progress: number): number Share of the samples, relative to the other weights of the mix; a function of the stage's progress changes it on the way. Default: `1`.
---@field epochs? integer Passes before the source is spent; 0: as often as needed. Default: `0`.
---@field fields? table<string, string> Which key of the shard's JSON holds a part of a sample, where it is not the part's own name. Parts: `user` (the user's turn), `assistant` (the answer), `caption` (a text without a question), `chosen_assistant` (the preferred answer of a pair), `rejected_assistant` (the other answer of a pair), `messages` (a conversation as a list of { role, content }), `conversations` (a conversation as a list of { from, value }), `source` (the name that `prompts` goes by), `frame_count` (how many frames belong to the sample), `token_ids` (tokens made beforehand, with loss_mask), `loss_mask` (which of token_ids are learnt), `choices` (the options of a multiple-choice question), `answer` (the right option: its number from 0, its letter or its text).
---@field name? string Of the samples that name no source of their own: for `prompts` and statistics.

---Cross-entropy of the next token, mean over the labels it selects.
---@class fvlm.NextToken
---@field on? "all"|"answer" Which labels. Default: `"answer"`.
---@field first? integer Only the first so many labels of each span. In tokens.
---@field pass? "fine"|"coarse" Which of the two passes. A coarse term of weight x is what the public code calls lambda_coarse = x. Default: `"fine"`.
---@field weight? number Factor on this term in the sum. Default: `1`.

---Cross-entropy of the next token, mean over the labels it selects.
---@param table fvlm.NextToken
---@return fvlm.NextToken
function fvlm.next_token(table) end

---Direct preference optimisation on pairs of answers. The reference is the model as the stage finds it, frozen.
---@class fvlm.Dpo
---@field beta? number How strongly the policy is held to the reference; small is loose. Default: `0.1`.
---@field cache_reference? boolean Compute the reference's log-probabilities once and keep them on disk, in place of a second model in memory. Default: `false`.
---@field weight? number Factor on this term in the sum. Default: `1`.

---Direct preference optimisation on pairs of answers. The reference is the model as the stage finds it, frozen.
---@param table fvlm.Dpo
---@return fvlm.Dpo
function fvlm.dpo(table) end

---Kullback-Leibler divergence from a frozen teacher's next-token distribution.
---@class fvlm.Kl
---@field teacher string A model directory or checkpoint with the same vocabulary.
---@field on? "all"|"answer" Which labels. Default: `"answer"`.
---@field first? integer Only the first so many labels of each span. In tokens.
---@field temperature? number Both distributions are softened by it; above 1 is softer. Default: `1`.
---@field weight? number Factor on this term in the sum. Default: `1`.

---Kullback-Leibler divergence from a frozen teacher's next-token distribution.
---@param table fvlm.Kl
---@return fvlm.Kl
function fvlm.kl(table) end

---Adam with decoupled weight decay.
---@class fvlm.AdamW
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Decoupled weight decay, for all groups or by group.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" How the optimizer stores its state. Master weights are always fp32. Default: `"fp32"`.
---@field betas? (number)[] Decay of the first and of the second moment. Default: `{ 0.9, 0.999 }`.
---@field eps? number Added to the root of the second moment. Default: `1e-8`.

---Adam with decoupled weight decay.
---@param table fvlm.AdamW
---@return fvlm.AdamW
function fvlm.adamw(table) end

---Momentum orthogonalised by Newton-Schulz, for the matrices inside the layers.
---@class fvlm.Muon
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Decoupled weight decay, for all groups or by group.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" How the optimizer stores its state. Master weights are always fp32. Default: `"fp32"`.
---@field momentum? number Decay of the momentum. Default: `0.95`.
---@field nesterov? boolean Look ahead along the momentum. Default: `true`.
---@field eps? number Added to the norm that a matrix is divided by. Default: `1e-7`.
---@field others fvlm.MuonOthers How all that is no matrix inside a layer is stepped.

---Momentum orthogonalised by Newton-Schulz, for the matrices inside the layers.
---@param table fvlm.Muon
---@return fvlm.Muon
function fvlm.muon(table) end

---AdamW for what Muon leaves out: embeddings, head, vectors.
---@class fvlm.MuonOthers
---@field lr number|table<string, number> Base learning rate, for all groups or by group.
---@field betas? (number)[] Decay of the first and of the second moment. Default: `{ 0.9, 0.999 }`.
---@field eps? number Added to the root of the second moment. Default: `1e-8`.

---An algorithm that a plugin brings, by its name.
---@class fvlm.Optimizer
---@field algorithm? string As the plugin names it: kind "fvlm.optimizer/1:NAME".
---@field lr number|table<string, number> Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.
---@field weight_decay? number|table<string, number> Weight decay, for all groups or by group, of an algorithm that has it. Without it, the algorithm's own default.
---@field clip? number Largest global norm of the gradient; 0: no clipping. Default: `1`.
---@field moments? "fp32"|"bf16" How the optimizer stores its state. Master weights are always fp32. Default: `"fp32"`.
---@field options? table<string, number> The algorithm's own hyperparameters. The plugin checks their names and ranges.

---An algorithm that a plugin brings, by its name.
---@param algorithm string As the plugin names it: kind "fvlm.optimizer/1:NAME".
---@return fun(table: fvlm.Optimizer): fvlm.Optimizer
---@overload fun(algorithm: string, table: fvlm.Optimizer): fvlm.Optimizer
function fvlm.optimizer(algorithm) end

---The base rate all the way.
---@class fvlm.Constant
---@field warmup? number Share of the stage over which the rate rises from 0. Default: `0`.

---The base rate all the way.
---@param table fvlm.Constant
---@return fvlm.Constant
function fvlm.constant(table) end

---Falls along half a cosine.
---@class fvlm.Cosine
---@field warmup? number Share of the stage over which the rate rises from 0. Default: `0`.
---@field to_share? number What is left at the end, as a share of the base rate. Default: `0.1`.

---Falls along half a cosine.
---@param table fvlm.Cosine
---@return fvlm.Cosine
function fvlm.cosine(table) end

---Falls along a straight line.
---@class fvlm.Linear
---@field warmup? number Share of the stage over which the rate rises from 0. Default: `0`.
---@field to_share? number What is left at the end, as a share of the base rate. Default: `0`.

---Falls along a straight line.
---@param table fvlm.Linear
---@return fvlm.Linear
function fvlm.linear(table) end

---Every group goes along half a cosine from its own base rate to one common rate, down or up.
---@class fvlm.Converging
---@field warmup? number Share of the stage over which the rate rises from 0. Default: `0`.
---@field to number The common learning rate at the end.

---Every group goes along half a cosine from its own base rate to one common rate, down or up.
---@param table fvlm.Converging
---@return fvlm.Converging
function fvlm.converging(table) end

---What one optimizer step sees: it takes samples until a limit would be passed.
---@class fvlm.Batch
---@field samples? integer Most samples. Alone: exactly so many, and the number of steps is known.
---@field tokens? integer Most tokens, visual and text together.
---@field frames? integer Most frames.

---The fixed size of one pack, which is the micro-batch: it changes speed and memory, and not what is learnt. The free
---memory is not looked at: `train --find-batch` searches what it holds.
---@class fvlm.Packing
---@field frames? integer|"auto" Frame slots of a pack; "auto": as many as go with its tokens in the first 256 samples, and no fewer than the largest sample needs. Default: `"auto"`.
---@field tokens? integer|"auto" Token slots of a pack, visual and text together; "auto": 8,192, or what the largest sample needs where that is more. Default: `"auto"`.
---@field segments? integer|"auto" Samples a pack may hold; the micro-batch in samples; "auto": as many as fit. Default: `"auto"`.
---@field window? integer How many samples ahead the packer may choose from; 1: in order of arrival. In samples. Default: `256`.

---Which layers forget their activations and compute them again in the backward pass; "light": all, but only what
---norms, GELU and SwiGLU made, which costs little time. One word for both towers, or each on its own.
---@class fvlm.ActivationCheckpointing
---@field vision? "none"|"light"|"all"|{ every: integer }|{ layers: integer[] } Layers of the vision tower, counted from 0. Default: `"none"`.
---@field decoder? "none"|"light"|"all"|{ every: integer }|{ layers: integer[] } Layers of the decoder, counted from 0. Default: `"none"`.

---What is measured on held-out samples, and when. Always at the end of the stage too.
---@class fvlm.Evaluation
---@field every? integer How often; 0: only at the end of the stage. In steps. Default: `0`.
---@field [integer] fvlm.EvaluationSet The held-out sets.

---Held-out samples and what is measured on them.
---@class fvlm.EvaluationSet
---@field name? string In metrics and the report.
---@field data fvlm.Mix The samples.
---@field measure? "loss"|"choice"|"preference" The main figure. Default: `"loss"`.
---@field modes? "coarse_fine"|"refined"|"coarse_only"|"autoregressive"|("coarse_fine"|"refined"|"coarse_only"|"autoregressive")[] How frames are read; the first decides which checkpoint is best. Default: `{ "coarse_fine" }`.
---@field samples? integer How many samples, always the same; 0: all. Default: `0`.
---@field entropy? boolean Also measure the entropy of the attention over a frame. Default: `false`.
---@field show? integer Samples shown in the report with the model's answer and where it looked. Default: `0`.

---Held-out samples and what is measured on them.
---@param name string In metrics and the report.
---@return fun(table: fvlm.EvaluationSet): fvlm.EvaluationSet
---@overload fun(name: string, table: fvlm.EvaluationSet): fvlm.EvaluationSet
function fvlm.evaluation(name) end

---A function that looks at the run between steps and may change its course.
---@class fvlm.Control
---@field every integer How often it is called. In steps.
---@field run fun(m: table<string, number>, memory: table): fvlm.Action|fvlm.Action[]|nil Gets the metrics and a table that is kept between calls (plain values, saved with checkpoints). Answers with fvlm.stop_stage(), fvlm.save(), fvlm.scale_lr(0.5), a list of these, or nothing. Answers are journaled: a resume under the same plan replays them.

---Ends the stage here; the next one begins.
---@class fvlm.StopStage

---Ends the stage here; the next one begins.
---@return fvlm.StopStage
function fvlm.stop_stage() end

---Writes a checkpoint now.
---@class fvlm.Save

---Writes a checkpoint now.
---@return fvlm.Save
function fvlm.save() end

---Multiplies the learning rate of every group, from here to the end of the stage.
---@class fvlm.ScaleLr
---@field factor? number 0.5 halves it.

---Multiplies the learning rate of every group, from here to the end of the stage.
---@param factor number 0.5 halves it.
---@return fvlm.ScaleLr
function fvlm.scale_lr(factor) end

return fvlm
