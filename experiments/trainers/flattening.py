"""Why transformers' own padding-free collator is no arm here, found by trying it on the model."""

from experiments.trainers.setting import Setting


def why_not_flattened(setting: Setting) -> str:
    """Return why DataCollatorWithFlattening gives the model's classifier no logits of each sample; empty if it does."""
    import torch
    from transformers import DataCollatorWithFlattening

    model, rows = setting.build_model().eval(), setting.rows()[:3]
    name = type(model).__name__
    try:
        DataCollatorWithFlattening()(rows)
    except Exception as error:  # whatever it raises, the arm cannot run
        first = f"it wants a label for each token, not one for each sample ({type(error).__name__})"
    else:
        first = ""
    unlabelled = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows]
    batch = DataCollatorWithFlattening()(unlabelled)
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
    if len(logits) == len(rows):
        return first and f"DataCollatorWithFlattening with {name}: {first}"
    second = f"its rows have no samples apart, so the head gives {len(logits)} row of logits for {len(rows)} of them"
    both = "; ".join(filter(None, (first, second)))
    return f"DataCollatorWithFlattening with {name}: {both}; ddpsched.packed_collate is in its place"
