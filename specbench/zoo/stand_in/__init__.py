"""Stand-ins: the tiny models in the shapes of real models, at the cost of real models.

A stand-in has a real model's layers, width, heads and vocabulary, filled with noise. In one corner
is a tiny model, which computes exactly what it always does. So the tokens and accepted lengths are
tiny's, and the time is the real model's. Importing this package imports no torch.

This keeps the corner apart from the noise (D is the big width, d the small width):

- **Few zeros.** A channel of the residual stream that the small model lacks is always zero, so
  the columns that read it may hold noise. A row whose result has to be zero is noise in these
  columns, and zero in the few columns whose channels are not always zero. The rows of `v_proj`
  and `up_proj` of added layers, heads and neurons are such rows: attention and MLP add nothing,
  although every matrix in them is noise except for a stripe of d columns. (Zeroing the
  output projections instead would make a third of the weights zero, and zeros draw less power.)
- **Norms.** RMSNorm divides by sqrt(|x|^2 / D + eps'). With norm weights times sqrt(d / D) and
  eps' = eps d / D it equals the small norm: w x sqrt(d / D) / sqrt((|x|^2 + d eps) / D).
- **The constant channel.** Channel d of every embedding is a constant c, which no layer changes. It
  changes |x|^2 to |x|^2 + c^2, so eps' = (d eps - c^2) / D gives the same denominator as before:
  (|x|^2 + c^2) / D + eps' = (|x|^2 + d eps) / D. This requires c^2 < d eps; c is the largest power
  of two that satisfies it, which every dtype holds exactly. Norms inside the layers have weight 0
  in this channel.
- **Added vocabulary.** After the final norm the constant is h = g c sqrt(d) / sqrt(|x|^2 + d eps)
  for a norm weight of g sqrt(d / D). Rows of the head for added tokens read only h, with weight
  -2^15. Their logits are below -1000, and those of the small model are between -50 and 50. Draft
  heads over hidden states keep h. After a softmax, an added token's probability is exactly 0.
- **Experts.** Each expert of a mixture holds the small MLP and noise of its own, and the router is
  noise. The shares of the chosen experts add up to one, so the output is the small MLP's.
- **Rotary positions.** Pair i of a head of size 64 turns by theta^(-2i/64) per position. Pair m i
  of a head of size 64 m turns by the same angle, so pair i is placed there. Queries are multiplied
  by sqrt(m), because attention divides by sqrt(64 m) and not by sqrt(64).
- **Grouped heads.** Small head h is the first query head of group h, and the only one that reads
  the group's keys and values: the outputs of the group's other heads are multiplied by zeros.

The rotary base and the context are tiny's, which costs the same. Drafters are embedded in the same
way.
"""
