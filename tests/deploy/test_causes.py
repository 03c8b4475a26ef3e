from pdctl.deploy.causes import evidence, find_causes

CORE = "(EngineCore pid=19453) ERROR 11-29 18:46:38 [core.py:1510] "
CAUSE = "ValueError: To serve at least one request, (0.5 GiB KV cache is needed)"
LOG = [
    "(APIServer pid=19319) INFO 11-29 18:46:07 [compilation.py:317] Enabled custom fusions",
    CORE + "EngineCore failed to start.",
    CORE + "Traceback (most recent call last):",
    CORE + '  File "/e/vllm/v1/core/kv_cache_utils.py", line 5, in check_enough_kv_cache_memory',
    CORE + CAUSE,
    "(EngineCore pid=19453) Process EngineCore:",
    "(EngineCore pid=19453) " + CAUSE,
    *(f'  File "/e/vllm/{number}.py", line 1, in x' for number in range(20)),
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)",
]


def test_the_cores_own_exception_is_found_once() -> None:
    assert find_causes(LOG) == [CAUSE]


def test_it_stands_before_the_last_lines_when_they_do_not_hold_it() -> None:
    assert evidence(LOG, 3) == ["it seems because:", CAUSE, "its last lines:", *LOG[-3:]]
    assert evidence(LOG, 25) == ["its last lines:", *LOG[-25:]]
    assert evidence([], 3) == ["it wrote nothing to its log"]


def test_what_only_mentions_an_error_is_no_cause() -> None:
    assert find_causes(["no Error: here", "INFO ErrorCount: 3", "Error", "ValueError:"]) == []


def test_named_exceptions_of_modules_are() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory"
    assert find_causes([line, "  " + line, "huggingface_hub.errors.GatedRepoError: 401"]) == [
        line,
        "huggingface_hub.errors.GatedRepoError: 401",
    ]
