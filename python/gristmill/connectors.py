"""A dataclass for every connector piece.

Generated from the library's schemas: `make schemas` makes it anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

__all__ = [
    "ActionChunking",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddOneTsToEpisodesAndTruncate",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "ClipRewards",
    "ComputeReturnsToGo",
    "CountBasedCuriosity",
    "DecisionTransformerWindows",
    "EuclidianDistanceBasedCuriosity",
    "Expression",
    "FlattenObservations",
    "FrameStacking",
    "GeneralAdvantageEstimation",
    "HindsightGoalRelabelling",
    "MeanStdFilter",
    "NStepReturns",
    "NormalizeRewardsByReturnRange",
    "NumpyToTensor",
    "OverlappingSequences",
    "PrevActionsPrevRewards",
    "RewardScaling",
    "StackObservations",
]


@dataclass(kw_only=True)
class AddOneTsToEpisodesAndTruncate:
    """Lengthens every episode by one artificial step, so that a value function can be asked for the last observation.

    ```text
                  recorded            lengthened
    obs           o0 o1 | o2          o0 o1 o2 | o2      (after | : the observation after the last step)
    actions       a0 a1               a0 a1 a1           extra model outputs likewise
    infos         i0 i1 | i2          i0 i1 i2 | i2      where they are read; the last step's again where i2 is not there
    rewards       r0 r1               r0 r1 0.0           (as float64, as 0.0 is)
    terminateds   F  end              F  end F
    truncateds    F  end              F  end F           `end` is True where the episode was not done
    loss_mask                         T  T   F
    ```

    Adds `terminateds`, `truncateds` and `loss_mask` to the batch, which later pieces pass through. An episode without
    steps stays empty (RLlib raises an `IndexError`). As RLlib's
    `connectors/learner/add_one_ts_to_episodes_and_truncate.py` and `utils/postprocessing/episodes.py`.
    """

    _type: ClassVar[str] = "AddOneTsToEpisodesAndTruncate"


@dataclass(kw_only=True)
class AddObservationsFromEpisodesToBatch:
    """Adds the observation before each action as column `obs`; look-back observations and the last one are left out.

    Nested observations give one column a leaf (`obs/pos`). A batch that already has `obs` is passed through.
    As RLlib's `connectors/common/add_observations_from_episodes_to_batch.py`.
    """

    _type: ClassVar[str] = "AddObservationsFromEpisodesToBatch"

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class AddNextObservationsFromEpisodesToTrainBatch:
    """Adds the observation after each action as column `new_obs`, the true last observation of the episode included.

    ```text
    episode o0 a0 o1 a1 o2      obs = o0 o1      new_obs = o1 o2
    ```

    It never repeats the last observation and never reads the next episode's: an episode whose last observation was
    not recorded is an error. A batch that already has `new_obs` is passed through. As RLlib's
    `connectors/learner/add_next_observations_from_episodes_to_train_batch.py`.
    """

    _type: ClassVar[str] = "AddNextObservationsFromEpisodesToTrainBatch"


@dataclass(kw_only=True)
class AddColumnsFromEpisodesToTrainBatch:
    """Adds `actions`, `rewards`, `terminateds`, `truncateds` and every extra model output but `state_in`/`state_out`.

    ```text
    episode of 3 steps that terminated     terminateds = F F T      truncateds = F F F
    chunk of 2 steps, cut and continued    terminateds = F F        truncateds = F F
    ```

    Where no episode has a step there is nothing to add, as in RLlib.

    Each column that the batch already has is passed through, which is how a custom piece in front replaces one.
    Infos are not added. As RLlib's `connectors/learner/add_columns_from_episodes_to_train_batch.py`.
    """

    _type: ClassVar[str] = "AddColumnsFromEpisodesToTrainBatch"


@dataclass(kw_only=True)
class AddInfosFromEpisodesToTrainBatch:
    """Adds what the environment told beside each observation: a column for each number in the infos.

    ```text
    infos of an episode of 3 steps              the batch
    {lives: 3}                                  infos/lives   infos/hit   infos/_hit
    {lives: 3, hit: 0.5}                        3             0.0         F
    {lives: 2}                                  3             0.5         T
    {lives: 2}   (after the last step)          2             0.0         F
    ```

    RLlib's column is a list of dicts, one a step and never padded. Here each key whose values are numbers, or arrays of
    one shape, becomes a column `infos/key`, and nested ones `infos/key/inner`. A key that is missing in some steps has
    zeros there, and a boolean `_key` beside it tells where it was recorded, as in the infos of Gymnasium's vector
    environments. Other keys (text, arrays of several shapes) are left out, each with a note in the report that names
    the first such value. Where nothing is left there is no column.

    Dtypes stay as recorded: RLlib makes no tensors of infos. In sequences of a stateful module infos are padded like
    every other column; `infos/key[loss_mask]` is RLlib's flat list. A batch that already has infos is passed through.
    As RLlib's `connectors/learner/add_infos_from_episodes_to_train_batch.py`.
    """

    _type: ClassVar[str] = "AddInfosFromEpisodesToTrainBatch"


@dataclass(kw_only=True)
class AddTimeDimToBatchAndZeroPad:
    """Cuts each episode's columns into sequences of `max_seq_len` and pads the last one with zeros; adds `seq_lens` and
    `loss_mask`.

    ```text
    episodes of 5 and 2 steps, max_seq_len = 3 (T)     column         loss_mask   seq_lens
      a0 a1 a2 a3 a4   b0 b1                           [a0 a1 a2]     [T T T]     3
                                                       [a3 a4  0]     [T T F]     2
                                                       [b0 b1  0]     [T T F]     2
    ```

    A column of shape `[...]` becomes `[T, ...]`; padding is the dtype's zero (`False`, 0, 0.0). Only for stateful
    modules: for others this piece does nothing. A `loss_mask` that an earlier piece added is padded like any column.
    As RLlib's `connectors/common/add_time_dim_to_batch_and_zero_pad.py` and `utils/postprocessing/zero_padding.py`.
    """

    _type: ClassVar[str] = "AddTimeDimToBatchAndZeroPad"

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class AddStatesFromEpisodesToBatch:
    """Adds `state_in`, the recurrent state before the first step of each sequence, and with next observations in the
    batch `next_state_in`, the state after that step.

    ```text
    state_out of 5 steps s0 s1 s2 s3 s4, max_seq_len = 2

      look s0 s1 s2 s3          one to the right, the look-back state in front
      look    s1    s3          every second one    = state_in
      s0      s2    s4          every second one    = next_state_in
    ```

    The look-back state is the module's initial state when the chunk starts its episode or no states were recorded,
    else the last state of the steps before the chunk. Where those steps are nowhere in the data, the initial state is
    taken and the row is counted as a repair (RLlib fails on nested states and takes the chunk's *own last* state
    otherwise; `compat = "rllib-2.60"` does the same). Sequences that overlap, or that start in the look-back, get the
    state before their first real step all the same. Only for stateful modules; a batch that already has `state_in` is
    passed through. As RLlib's `connectors/common/add_states_from_episodes_to_batch.py`.
    """

    _type: ClassVar[str] = "AddStatesFromEpisodesToBatch"

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class AgentToModuleMapping:
    """Sends each agent's data to the module that acts for it.

    Which module that is stands in the job's `[multi_agent]` table or in the recording, so rows come apart by module
    when episodes are put together, before the first piece runs. The piece is accepted where RLlib's pipelines name it
    and changes nothing. As RLlib's `connectors/common/agent_to_module_mapping.py`, whose order of agents inside an
    episode is that of a Python set; here it is that of their first rows.
    """

    _type: ClassVar[str] = "AgentToModuleMapping"

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class BatchIndividualItems:
    """Joins the items of each column into one array with a leading batch dimension.

    Columns are arrays here from the start, so this piece only marks the point after which nothing can be added step
    by step. As RLlib's `connectors/common/batch_individual_items.py`.
    """

    _type: ClassVar[str] = "BatchIndividualItems"

    multi_agent: bool = False
    """Accepted as RLlib's argument. Whether data are multi-agent is seen from the data."""


@dataclass(kw_only=True)
class NumpyToTensor:
    """Turns float64 into float32, rounding to nearest even; every other dtype stays (float16, integers, booleans).

    Infos, which RLlib never makes tensors, stay as recorded.

    The conversion happens once, at the end: all arithmetic before it is in the recorded dtype. As RLlib's
    `connectors/common/numpy_to_tensor.py` and `utils/torch_utils.py` (`convert_to_torch_tensor`).
    """

    _type: ClassVar[str] = "NumpyToTensor"

    as_learner_connector: bool = True
    """Accepted as RLlib's argument; always true here."""

    pin_memory: bool = False
    """Accepted as RLlib's argument; has no effect on files."""

    device: str | None = None
    """Accepted as RLlib's argument; has no effect on files."""


@dataclass(kw_only=True)
class GeneralAdvantageEstimation:
    """Adds `advantages` (standardised) and `value_targets` from the recorded value predictions.

    ```text
    delta_t  = r_t + gamma * (1 - terminated_t) * V_{t+1} - V_t
    A_t      = delta_t + gamma * lambda * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}
    value_targets = A + V      advantages = (value_targets - V - mean) / max(1e-4, std)
    ```

    RLlib asks the module for `V`; here it is the recorded column `vf_preds`, or the one that `values` names. It should
    stand behind `AddOneTsToEpisodesAndTruncate`, whose extra step carries the bootstrap value, and behind
    `NumpyToTensor`.

    RLlib 2.60 takes mean and standard deviation over the extra steps, too, and lets their own (masked) values see the
    next episode (issue 57989). `compat = "correct"` takes them over real steps only, and nothing crosses an episode's
    end. As RLlib's `connectors/learner/general_advantage_estimation.py` and `utils/postprocessing/value_predictions.py`.
    """

    _type: ClassVar[str] = "GeneralAdvantageEstimation"

    gamma: float
    """Discount a step, from 0 to 1."""

    lambda_: float
    """Weight of longer estimates against the value predictions, from 0 to 1."""

    values: str = "vf_preds"
    """The column of value predictions."""


@dataclass(kw_only=True)
class ComputeReturnsToGo:
    """Adds `returns_to_go`: at each step the discounted sum of the rewards from there to the episode's end.

    ```text
    rewards 1 2 3 4, gamma = 1      returns_to_go 10 9 7 4
    ```

    Computed from the back, `acc = reward + gamma * acc`, in float64 whatever the rewards' dtype. It ends where the
    recorded chunk ends, without a bootstrap. Rewards of several components are summed one by one. As RLlib's
    `connectors/learner/compute_returns_to_go.py`, where the sum ends after one step if rows come from a table.
    """

    _type: ClassVar[str] = "ComputeReturnsToGo"

    gamma: float
    """Discount a step, from 0 to 1."""


@dataclass(kw_only=True)
class OverlappingSequences:
    """Cuts each episode's columns into sequences of `burn_in + length` steps, one every `period` steps; adds `seq_lens`
    and `loss_mask`.

    ```text
    an episode of 7 steps, burn_in = 2, length = 3, period = 2

      column              loss_mask        seq_lens   state_in       t
      [a0 a1 a2  0  0]    [T T T F F]      3          initial        0
      [a0 a1 a2 a3 a4]    [F F T T T]      5          initial        0
      [a2 a3 a4 a5 a6]    [F F T T T]      5          after step 1   2
    ```

    The network unrolls from `state_in` over the burn-in, without loss, and learns from the steps behind it; the steps
    learnt start at 0, `period`, 2 `period`, .. Every column of `[...]` becomes `[burn_in + length, ...]`. A sequence
    never holds steps of two episodes. Near an episode's start there are fewer steps to burn in than asked for, and none
    at all for its first steps. Real steps always stand in front and padding (zeros) at the end, so that `state_in` is
    the state right before place 0 and a recurrent network never runs over padding to get to real steps.

    A chunk that continues an episode burns in on the steps before it, where these are in the data, a state is known
    before them, and every column of the batch is a recorded one (or `new_obs`, `terminateds`, `truncateds`); their
    values are those recorded. Else the burn-in starts with the chunk.

    In front of the default pipeline it takes the place of `AddTimeDimToBatchAndZeroPad`; in a pipeline of one's own it
    stands there, in front of `AddStatesFromEpisodesToBatch`. Unlike that piece it cuts the batches of all modules. The
    defaults (no burn-in, sequences of `max_seq_len` one after the other) are RLlib's rule.

    After Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), ICLR 2019:
    `burn_in = 40, length = 80, period = 40`. There, and in Acme's `SequenceAdder`, the first sequence starts with the
    episode, so that its first `burn_in` steps are never learnt: `start = "inside"`.
    """

    _type: ClassVar[str] = "OverlappingSequences"

    burn_in: int = 0
    """Steps in front of those learnt that only bring the recurrent state up to date."""

    length: int | None = None
    """Steps learnt in a sequence (R2D2's trace length); the module's `max_seq_len` when left out."""

    period: int | None = None
    """Steps from one sequence to the next, at most `length`; `length` when left out."""

    start: Literal["before", "inside"] = "before"
    """Where an episode's first sequence starts."""

    end: Literal["cover", "inside"] = "cover"
    """Where an episode's last sequence ends."""


@dataclass(kw_only=True)
class DecisionTransformerWindows:
    """Cuts each episode's columns into windows of `context_len` steps, one for every step; adds `returns_to_go`,
    `timesteps` and a mask.

    ```text
    an episode of 3 steps with rewards 1 2 3, context_len = 2, gamma = 1

      anchor = "end", side = "left"     actions    returns_to_go   timesteps   attention_mask   t
        window of step 0                [ 0 a0]    [0 6]           [0 0]       [F T]            0
        window of step 1                [a0 a1]    [6 5]           [0 1]       [T T]            0
        window of step 2                [a1 a2]    [5 3]           [1 2]       [T T]            1
      anchor = "start", side = "right"
        window of step 0                [a0 a1]    [6 5]           [0 1]       [T T]            0
        window of step 1                [a1 a2]    [5 3]           [1 2]       [T T]            1
        window of step 2                [a2  0]    [3 0]           [2 0]       [T F]            2
    ```

    A window never holds steps of two episodes. Those that end at a step reach into the look-back of a recorded chunk
    that continues an episode, where every column of the batch is known there. Returns-to-go sum the rewards up to the
    recorded chunk's end in float64, `(reward + gamma * ..) * scale`; time steps count from the episode's true start.

    The conventions in use, and the options that give them (columns keep RLlib's names):

    | | windows | padding | mask | returns, time steps |
    |---|---|---|---|---|
    | kzl/decision-transformer, `gym/experiment.py` | `anchor = "start"` | `side = "left"`, `fill = { actions = -10, terminateds = 2 }` | `attention_mask` | `scale = 0.001` (it divides by 1000, or 10), steps 0 in padding |
    | CORL, `algorithms/offline/dt.py` | `anchor = "start"` | `side = "right"`, zeros | `attention_mask` | `scale = 0.001`, `timesteps_padding = "count"` |
    | d3rlpy, `dataset/trajectory_slicers.py` | `anchor = "end"` | `side = "left"`, zeros | `attention_mask` | `first_timestep = 1` (0 means padding) |
    | RLlib's former DT, `segmentation_buffer.py` | `anchor = "end"` | `side = "left"`, zeros | `attention_mask` | its returns have one more entry, that of the step after the window |
    | RLlib's learner pipeline | `anchor = "start"`, `period = context_len` | `side = "right"`, zeros | `loss_mask` | |
    | LeRobot, `delta_timestamps` of past steps | `anchor = "end"` | `side = "left"`, `fill = { obs = "repeat", .. }` | `is_pad` | |

    The trainers of the first four draw windows at random; here each stands once. kzl normalises observations after
    padding, so that its padding is `-mean / std` where this piece writes 0: masked, and so without effect. LeRobot's
    windows of steps to come are `ActionChunking`'s. d3rlpy's `TransitionPicker` pairs a step
    with the next one: that is `new_obs`, not a window.

    In front of the default pipeline it takes the place of `AddTimeDimToBatchAndZeroPad`, behind the pieces that add
    columns; in a pipeline of one's own it stands there.
    """

    _type: ClassVar[str] = "DecisionTransformerWindows"

    context_len: int = 20
    """Steps of a window."""

    period: int = 1
    """Steps from one window to the next."""

    anchor: Literal["end", "start"] = "end"
    """Whether a step's window ends or starts with it."""

    side: Literal["left", "right"] = "left"
    """Which side of a window is padded that runs out of the episode."""

    whole_only: bool = False
    """Leave out windows that would need padding."""

    fill: dict[str, float | Literal["repeat"]] | None = None
    """What stands in padding, by column: a number, or "repeat" for the nearest step. Zero where nothing is said. A
    boolean column with another number than 0 and 1 becomes int64.
    """

    mask: Literal["attention_mask", "loss_mask", "is_pad"] = "attention_mask"
    """Name of the mask and what it says: `attention_mask` and `loss_mask` are true at real steps, `is_pad` in padding."""

    gamma: float = 1.0
    """Discount of the returns-to-go, from 0 to 1."""

    scale: float = 1.0
    """What returns-to-go are multiplied by."""

    first_timestep: int = 0
    """The time step of an episode's first step: 0 or 1."""

    timesteps_padding: Literal["zero", "count"] = "zero"
    """What `timesteps` hold in padding."""


@dataclass(kw_only=True)
class ActionChunking:
    """Makes `actions` of each step the next `chunk_size` actions of its episode, and adds `action_is_pad`.

    ```text
    an episode of 3 steps, chunk_size = 3          fill = "repeat"     fill = "zero"     action_is_pad
      step 0                                       [a0 a1 a2]          [a0 a1 a2]        [F F F]
      step 1                                       [a1 a2 a2]          [a1 a2  0]        [F F T]
      step 2                                       [a2 a2 a2]          [a2  0  0]        [F T T]
    ```

    Rows stay steps: `actions` of `[...]` become `[chunk_size, ...]`. A chunk never holds actions of another episode,
    and where a recording is cut, none from behind the cut. `past` puts actions before the step in front (of the chunk's
    `chunk_size`), from the look-back where a recorded chunk continues an episode. With a `loss_mask` in the batch there
    are artificial steps, whose actions nobody took, so the piece refuses.

    The convention of ACT (Zhao et al. 2023) and of LeRobot's `delta_timestamps = { "action": [0, 1/fps, ..] }`, which
    repeats the nearest action and names the mask `action_is_pad`. Diffusion Policy's actions start `n_obs_steps - 1`
    steps before the current one: `past`. ACT's own data loader pads with zeros.
    """

    _type: ClassVar[str] = "ActionChunking"

    chunk_size: int = 100
    """Actions a step."""

    past: int = 0
    """How many of them lie before the step; fewer than `chunk_size`."""

    fill: Literal["repeat", "zero"] = "repeat"
    """What stands where the episode has no action."""


@dataclass(kw_only=True)
class CountBasedCuriosity:
    """Adds an intrinsic reward for observations that were seldom seen: `coeff / count`, where `count` is how often the
    observation came up so far, in all of the data set, this time included.

    ```text
    obs        a    b    a    a        the next episode   b     c
    count      1    1    2    3                           2     1
    rewards    0    0    0    1                           0     0
      + bonus  1.0  1.0  0.5  1.333..                     0.5   1.0     (intrinsic_reward_coeff = 1)
    ```

    The shaped rewards are written to the episodes: later pieces see them, earlier ones do not. Observations before the
    chunk and the one after its last step are not counted. As RLlib's
    `examples/connectors/classes/count_based_curiosity.py`, which counts 1-D observations only, never finds a NaN equal
    to anything, and truncates the sum where rewards are integers. `compat = "correct"` counts observations of any rank
    and dtype (the leaves of nested ones together) by value, where NaNs equal one another, and makes integer rewards
    float64. Observations of modules with different observation spaces are different.

    In RLlib a column `rewards` that `AddColumnsFromEpisodesToTrainBatch` has added before is a view of the episode's
    rewards until the batch is cut into sequences or joined, so it changes with them: so it does with
    `compat = "rllib-2.60"`.
    """

    _type: ClassVar[str] = "CountBasedCuriosity"

    intrinsic_reward_coeff: float = 1.0
    """Weight of the intrinsic reward."""


@dataclass(kw_only=True)
class EuclidianDistanceBasedCuriosity:
    """Adds an intrinsic reward for observations far from those seen before: `coeff` times the smallest Euclidian distance
    to the observations in a buffer.

    ```text
    episode   buffer before   obs       smallest distance   goes into the buffer
    0         (empty)         1  4      0  0                1     the first one, as none is farther
    1         1               1  4  3   0  3  2             4     the first of the farthest
    2         1  4            6  0      2  1                6
    ```

    The buffer holds the last `max_buffer_size` such observations and changes at the end of each episode (or recorded
    chunk). The shaped rewards are written to the episodes: later pieces see them, earlier ones do not. Distances have
    the observations' dtype, `sqrt(sum((a - b) ** 2))` with NumPy's pairwise sum over all elements. As RLlib's
    `examples/connectors/classes/euclidian_distance_based_curiosity.py` in its first call, where differences of
    integers wrap around (`uint8`: 1 - 2 = 255) and sums are truncated where rewards are integers. With
    `compat = "correct"` integer observations are subtracted and integer rewards added in float64, and modules with
    different observation spaces have buffers of their own. As with `CountBasedCuriosity`, a column `rewards` that is
    there before changes, too, with `compat = "rllib-2.60"`.
    """

    _type: ClassVar[str] = "EuclidianDistanceBasedCuriosity"

    intrinsic_reward_coeff: float = 1.0
    """Weight of the intrinsic reward."""

    max_buffer_size: int = 100
    """How many observations are remembered, at least 1: one an episode, the oldest one goes first."""


@dataclass(kw_only=True)
class FrameStacking:
    """Adds `obs`: at each step the last `num_frames` images as channels of one, oldest first.

    ```text
    frames of 3 steps   f0 f1 f2, num_frames = 4        uint8[84, 84, 1] -> uint8[84, 84, 4]

      channel           0   1   2   3
      t = 0             0   0   0   f0          zeros before the episode's first step
      t = 1             0   0   f0  f1
      t = 2             0   f0  f1  f2
    ```

    The dtype is kept; next observations are not stacked. Images of C channels get `C * num_frames`, vectors are
    joined, and every leaf of a nested observation is stacked by itself, as `StackObservations` does. Chunks that
    continue an episode see the frames before them: those that were recorded with the chunk, and with
    `compat = "correct"` also those of the chunk before, when it is in the data. Where they are nowhere, zeros are taken
    and the row is counted as a repair. As RLlib's `connectors/common/frame_stacking.py`, which takes images of one
    channel only: so does `compat = "rllib-2.60"`.
    """

    _type: ClassVar[str] = "FrameStacking"

    num_frames: int = 1
    """How many frames make one observation, at least 1."""

    multi_agent: bool = False
    """RLlib's argument; without effect, as recorded data say which agents there are."""

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class StackObservations:
    """Adds `obs`: at each step the last `num_frames` observations, joined along the last axis, oldest first.

    ```text
    obs of 4 steps   o0 o1 o2 o3, num_frames = 3

      t = 0          0  0  o0           zeros before the episode's first step
      t = 1          0  o0 o1
      t = 2          o0 o1 o2
      t = 3          o1 o2 o3

    shape of a step  float32[4] -> float32[12]     uint8[84, 84, 3] -> uint8[84, 84, 9]     int64 -> int64[3]
    ```

    Every leaf of a nested observation is stacked by itself; the dtype is kept. Chunks that continue an episode see the
    observations before them: those that were recorded with the chunk, and with `compat = "correct"` also those of the
    chunk before, when it is in the data. Where they are nowhere, zeros are taken and the row is counted as a repair.
    Next observations are not stacked. RLlib describes such a piece in its documentation without shipping it.
    """

    _type: ClassVar[str] = "StackObservations"

    num_frames: int = 1
    """How many observations make one, at least 1."""


@dataclass(kw_only=True)
class FlattenObservations:
    """Adds `obs`: every observation as one float32 vector.

    ```text
    space        { md: MultiDiscrete([2, 3]), mode: Discrete(4), pos: Box(shape = [2]) }
    observation  { md: [1, 0],                mode: 2,           pos: [0.5, -1.0] }

    obs          0 1  1 0 0                   0 0 1 0            0.5 -1.0
    ```

    The parts come in the order of their keys, sorted; those of tuples in order. Discrete and multi-discrete values
    become one-hot vectors, everything else is flattened in C order. Which integers are discrete is not recorded: the
    space comes from `input_observation_space`, else from the job's `input.spaces.obs`; where neither is given, all
    leaves must be floating-point numbers or have two dimensions or more. The next observations stay nested.

    As RLlib's `connectors/common/flatten_observations.py`, which in a learner pipeline works for episodes of one step
    only. RLlib ignores the `start` of a discrete space, so that the value `start + n - 1` fails or a negative one
    counts from the end: `compat = "rllib-2.60"` does, too, and `correct` subtracts it.
    """

    _type: ClassVar[str] = "FlattenObservations"

    input_observation_space: Any | None = None
    """The space of the recorded observations. With `multi_agent`, a table of spaces by agent, which must be equal."""

    keys_to_remove: list[str] = field(default_factory=lambda: [])
    """Keys of the outermost Dict space that are left out."""

    multi_agent: bool = False
    """Whether `input_observation_space` gives the spaces by agent."""

    agent_ids: list[str] | None = None
    """RLlib's choice of agents whose observations are flattened; not available yet."""

    as_learner_connector: bool = True
    """Always true here: recorded data go through the learner pipeline."""


@dataclass(kw_only=True)
class MeanStdFilter:
    """Normalises observations: mean 0 and standard deviation 1 over all steps of the data set.

    ```text
    obs   10000 10001 10002 (float32)          mean = 10001     std = sqrt(2/3) = 0.8165

    obs = clip((obs - mean) / (std + epsilon), -clip_by_value, clip_by_value)
        = -1.2247 0 1.2247
    ```

    Each element of each leaf has its own mean and standard deviation, from exact sums over the observation before
    every action, rounded once: they do not depend on the order of the data, on threads or on files. NaN and infinities
    are left out of them. The result is written into the episodes (look-back and the last observation, too), so that
    every later piece sees it and `new_obs` is normalised with the same numbers. Computed in float64; floats keep their
    dtype, integers become float32.

    Discrete and multi-discrete observations are left as they are. Which integers are discrete is not recorded:
    integers of less than two dimensions need `input_observation_space`, or the job's `input.spaces.obs`. Booleans are left as they are.

    The manifest's `statistics` hold counts, means and standard deviations of each column, for normalising what is
    observed later. With `output.split` they are those of the part `train` (or of the first one), for all parts.

    As RLlib's `connectors/env_to_module/mean_std_filter.py` and `utils/filter.py`, with these differences: RLlib's
    statistics run along with the data, these are final before the first row is normalised; RLlib divides by n - 1
    (`ddof = 1`), recorded data are normalised by n in D4RL's users (CORL's `compute_mean_std`); RLlib casts
    back to integers.
    """

    _type: ClassVar[str] = "MeanStdFilter"

    input_observation_space: Any | None = None
    """The space of the observations: which integers are discrete. With `multi_agent`, a table of spaces by agent."""

    multi_agent: bool = False
    """Whether each agent has statistics of its own; else they are those of the module."""

    de_mean_to_zero: bool = True
    """Whether to subtract the mean."""

    de_std_to_one: bool = True
    """Whether to divide by the standard deviation."""

    clip_by_value: float | None = 10.0
    """Limit of what comes out, to both sides of 0. No limit where it is 0 or null."""

    update_stats: bool = True
    """Always true here: the statistics are those of the data."""

    epsilon: float = 1e-6
    """Added to the standard deviation before dividing."""

    ddof: int = 0
    """Taken from the count where the variance is divided by it: 0 (population) or 1 (as RLlib)."""


@dataclass(kw_only=True)
class RewardScaling:
    """Scales rewards, then shifts them: `rewards * scale + shift`.

    ```text
    rewards 0 1 0 1 (antmaze)      scale = 1, shift = -1       rewards -1 0 -1 0
    ```

    Written into the episodes, so that every later piece sees it. Computed in float64 and rounded once: float rewards
    keep their dtype, integers and booleans become float64. Steps that `AddOneTsToEpisodesAndTruncate` has added keep
    their reward of 0. The usual preparation of offline data sets: `reward_scale` and `reward_bias` in CORL,
    `MultiplyRewardScaler` and `ConstantShiftRewardScaler` in d3rlpy.
    """

    _type: ClassVar[str] = "RewardScaling"

    scale: float = 1.0
    """Factor."""

    shift: float = 0.0
    """Added after scaling."""


@dataclass(kw_only=True)
class ClipRewards:
    """Clips rewards to `-limit ..= limit`, or replaces them by their sign.

    ```text
    rewards          -3.0  0.5  0.0  7.0
    limit = 1.0      -1.0  0.5  0.0  1.0
    sign = true      -1.0  1.0  0.0  1.0
    ```

    Written into the episodes, so that every later piece sees it. NaN stays NaN. Float rewards keep their dtype,
    integers and booleans become float64. As RLlib's `connectors/agent/clip_reward.py` (same arguments) and its setting
    `clip_rewards`, where `true` is `sign` and a number is `limit`; the sign is what DQN learns Atari games from.
    """

    _type: ClassVar[str] = "ClipRewards"

    sign: bool = False
    """Whether rewards become -1, 0 or 1."""

    limit: float | None = None
    """The largest magnitude of a reward."""


@dataclass(kw_only=True)
class NormalizeRewardsByReturnRange:
    """Divides rewards by the range of the episodes' returns and multiplies them by `max_episode_steps`.

    ```text
    episode A, terminated    rewards 1 2      return 3        max - min = 3 - (-1) = 4
    episode B, truncated     rewards -1       return -1       max_episode_steps = 1000
    episode C, open          rewards 50                       not counted

    rewards / 4 * 1000       A 250 500     B -250     C 12500
    ```

    The range is that of a module's whole data set, over all episodes that ended, each from its first to its last
    recorded step; chunks of one episode that follow one another are joined. Open episodes are not counted, as their
    return is not known, but their rewards are normalised, too; `AddOneTsToEpisodesAndTruncate` leaves none open. Written into the episodes, so that every later piece
    sees it. Computed in float64 and rounded once: float rewards keep their dtype, integers and booleans become float64.

    The manifest's `statistics` hold the number of episodes and the least and greatest return. With `output.split` they
    are those of the part `train` (or of the first one), for all parts.

    The convention of IQL for D4RL's locomotion tasks: `modify_reward` and `return_reward_range` in CORL. Those have
    no time-outs and cut after `max_episode_steps` steps in place of them; here an episode ends where its flags say.
    """

    _type: ClassVar[str] = "NormalizeRewardsByReturnRange"

    max_episode_steps: int = 1000
    """The factor: the task's time limit."""


@dataclass(kw_only=True)
class NStepReturns:
    """Adds the transition over up to `n_step` steps: `rewards`, `new_obs`, `terminateds`, `truncateds`, and `n_step`, the
    number of steps in the window.

    ```text
    n_step = 3, gamma = 0.9        obs o0 o1 o2 o3 | o4        rewards 1 10 100 1000        terminated

    t   window     rewards                  n_step   new_obs   terminateds   truncateds
    0   0 1 2      1 + .9 * 10 + .81 * 100 = 91  3   o3        F             F
    1     1 2 3    10 + 90 + 810          = 910  3   o4        T             F
    2       2 3    100 + 900             = 1000  2   o4        T             F
    3         3    1000                          1   o4        T             F
    ```

    The flags are those of the window's last step, and a window never crosses the end of the recorded episode. A learner's
    target is `rewards + gamma ^ n_step * (1 - terminateds) * V(new_obs)`: a terminated end has no future, a truncated one
    (flag `truncateds`) and an open one (no flag) go on from the last observation with the true number of steps. All
    other columns (`obs`, `actions`, extra model outputs) are those of the window's first step.

    Sums run from the back, `acc = reward + gamma * acc`, in float64. For stateless modules: the recurrent state before
    `new_obs` would be `n_step` steps away. As `n_step` in RLlib's `utils/replay_buffers/episode_replay_buffer.py`, where
    the last windows lose their `terminated` and say `n_step` whatever was summed.
    """

    _type: ClassVar[str] = "NStepReturns"

    n_step: int = 1
    """Steps of a window that no end cuts short."""

    gamma: float = 0.99
    """Discount a step, from 0 to 1: the algorithm's."""


@dataclass(kw_only=True)
class PrevActionsPrevRewards:
    """Makes the observation a Dict of `_orig_obs`, `prev_n_actions` and `prev_n_rewards`.

    ```text
    Discrete(3), n_prev_actions = 2, n_prev_rewards = 1

    t   action  reward      obs/prev_n_actions       obs/prev_n_rewards
    0   2       10.0        0 0 0   0 0 0            0.0           zeros before the first step
    1   1       20.0        0 0 0   0 0 1            10.0          oldest first
    2                       0 0 1   0 1 0            20.0          (after the last step, for `new_obs`)
    ```

    Discrete and multi-discrete actions become one-hot vectors, for which `input_action_space` is needed; others are
    flattened. Nested actions stand one leaf after the other, in the order of their sorted keys, each with its
    `n_prev_actions` values. Both columns are float32 vectors, as RLlib declares them. Written into the episodes, so
    that every later piece sees it: put `FlattenObservations` behind it for one vector.

    A chunk that continues an episode takes what came before from its look-back. Where it has none, zeros stand in and
    the report counts the rows.

    As RLlib's `connectors/env_to_module/prev_actions_prev_rewards.py`, followed by `WriteObservationsToEpisodes`.
    RLlib's `prev_n_actions` have another shape than it declares, `(n, width)`, unless actions are nested; and it
    ignores the `start` of a discrete space, so that some values are out of range.
    """

    _type: ClassVar[str] = "PrevActionsPrevRewards"

    input_action_space: Any | None = None
    """The space of the actions: which integers are discrete, and how many there are."""

    multi_agent: bool = False
    """Accepted as RLlib's argument. Whether data are multi-agent is seen from the data."""

    n_prev_actions: int = 1
    """Actions before each observation."""

    n_prev_rewards: int = 1
    """Rewards before each observation."""


@dataclass(kw_only=True)
class HindsightGoalRelabelling:
    """Replaces the goal of some steps by a goal that was achieved in the same episode, and the reward with it.

    ```text
    achieved_goal   g0  g1  g2 | g3       desired_goal d, never reached: rewards -1 -1 -1

    step 1 with strategy   future   one of g2 g3      final   g3      episode   one of g1 g2 g3

    step 1 relabelled to g2:   obs/desired_goal, new_obs/desired_goal = g2       reward 0, as new_obs/achieved_goal = g2
    ```

    Of `n_sampled_goal + 1` steps, `n_sampled_goal` are relabelled on average; run it with several seeds for several
    goals a step. The reward of a relabelled step is 0 where the distance (Euclidean) between the goal and what its
    action achieved is not greater than `distance_threshold`, and -1 elsewhere. Other steps keep goal and reward, and
    all keep their flags. `relabelled` tells them apart.

    Adds `obs`, `new_obs` and `rewards` to the batch: the goal of a step's `new_obs` is the step's own, which the
    episode, where each observation stands once, cannot say. Goals come from the recorded chunk itself. What is drawn for
    a step follows from the seed, the episode's and the agent's id and the time step: neither from threads nor from what
    else is in the data.

    After M. Andrychowicz and others, "Hindsight Experience Replay", 2017; names, the share of relabelled steps and the
    bounds of each strategy as in Stable-Baselines3's `HerReplayBuffer`; reward and threshold as in Gymnasium-Robotics'
    Fetch tasks.
    """

    _type: ClassVar[str] = "HindsightGoalRelabelling"

    goal_selection_strategy: Literal["future", "final", "episode"] = "future"
    """Which achieved goals may become the goal."""

    n_sampled_goal: float = 4.0
    """Relabelled steps for each step that stays as it was."""

    seed: int = 0
    """Seed of what is drawn."""

    achieved_goal: str = "obs/achieved_goal"
    """The observation leaf of what was achieved."""

    desired_goal: str = "obs/desired_goal"
    """The observation leaf of what was wanted."""

    distance_threshold: float = 0.05
    """The distance up to which a goal counts as reached."""


@dataclass(kw_only=True)
class Expression:
    r"""Computes columns by SQL: reshapes rewards, actions or observations, or adds columns of one's own.

    ```toml
    [[learner.connectors]]
    type = "Expression"
    columns = { rewards = "rewards / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)", is_fast = "\"obs/1\" > 1.5" }
    ```

    ```text
    rewards (float64)   10.0   20.0   30.0         rewards    1.01   2.0    3.01
    obs (float32[2])    .1 1   .9 2   -.4 3   ──▶  is_fast    F      T      T
    ```

    Each text is one expression of Polars SQL (<https://docs.pola.rs/api/python/stable/reference/sql/>); all of a piece
    read the columns as they were before the piece. With `into = "episodes"` the result takes the column's place in the
    episodes, so that every later piece sees it, or becomes a further column like an extra model output. With
    `into = "batch"` it goes into the batch as it is: the default piece passes on what is there already.

    **Columns** are those of the episode. A scalar has its name (`rewards`, `actions`, `vf_preds`). A tensor of one axis
    is one column an element, in double quotes: `"obs/0"`, `"obs/pos/2"`; without quotes `/` would divide. Tensors of
    more axes cannot be named. There are also `t` (int64, from the episode's true start), `terminateds` and `truncateds`
    (the flags of the step), `episode_length` (int64) and `episode_return` (float64, the rewards summed step by step)
    of the recorded chunk, and `eps_id` and `agent_id` as text.

    **Other rows.** Whatever looks at more than its own row (`SUM(x)`, `AVG(x)`, `LAG(x) OVER (ORDER BY t)`,
    `SUM(x) OVER (ORDER BY t)`) sees the rows of its episode (its recorded chunk) and no others. Sub-selects are refused.

    **Types** are those of SQL, by Polars' rules. A number in the text takes the width of the column beside it:
    `rewards * 0.1` is float32 for float32 rewards (0.1 rounded to float32 first, as `NumPy` 2 does) and float64 for
    float64. `/` on integers divides in floating point (`7 / 2` is 3.5, as in `NumPy`), `//` rounds down to int64. A
    truth value counts as 0 or 1 beside a number; beside a literal such as `0.01` that is float64. `+ - * / %` on
    floats give the bits that `NumPy` gives; `EXP`, `LN`, `SIN` and their like those of the platform. A column keeps its
    name and takes the expression's type: bool, integer, float32 or float64. Half precision is read as float32.
    `CAST(x AS REAL)` gives float32, `DOUBLE` float64, `BIGINT` int64, `INT` int32.

    **Missing values.** Null is an error with episode and step; NaN is a value like others. `LAG` gives null on the first
    step: `COALESCE(LAG(x) OVER (ORDER BY t), 0)`.

    **Observations** also stand after the last step, and before the first step of a chunk. So what replaces one may
    read observations, `t`, ids and the episode's length and return, row by row. `obs/0` names one element, which is
    rounded to the dtype of its tensor.
    """

    _type: ClassVar[str] = "Expression"

    columns: dict[str, str]
    """Column name to SQL expression, at least one."""

    into: Literal["episodes", "batch"] = "episodes"
    """`episodes`: later pieces see the columns. `batch`: they go into the batch, and the episodes stay as they are."""
