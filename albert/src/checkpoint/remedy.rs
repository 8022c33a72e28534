//! Advice for folders whose weights cannot be read.

use std::path::Path;

/// Advice for a file that cannot be read.
pub(super) fn of_file(name: &str) -> String {
    let script = |class: &str, how: &str| {
        format!(
            "python -c \"from {class} as M; M.from_pretrained('FOLDER'{how}){}.save_pretrained('NEW_FOLDER')\"",
            if class.starts_with("peft") { ".merge_and_unload()" } else { "" }
        )
    };
    let model = "transformers import AutoModelForPreTraining";
    let lower = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| lower.ends_with(ending));
    if lower.starts_with("adapter_") {
        let script = script("peft import AutoPeftModel", "");
        return format!(
            "{name} is an adapter of peft without its model; merge it into the model that it was made for: {script}"
        );
    }
    if ends(&[".h5", ".msgpack"]) {
        let (what, how) = if ends(&[".h5"]) { ("Keras", ", from_tf=True") } else { ("Flax", ", from_flax=True") };
        let script = script(model, how);
        return format!(
            "{name} contains {what} weights, which are not supported; convert them with transformers 4: {script}"
        );
    }
    if ends(&[".safetensors"]) {
        return match lower.contains("-of-") {
            true => {
                format!("{name} is a part, and model.safetensors.index.json is not there; fetch all files of the model")
            }
            false => format!("{name} has a different name; if it is the right model, copy it to model.safetensors"),
        };
    }
    if ends(&[".safetensors.index.json"]) || lower.starts_with("model.safetensors.index") {
        return format!("{name} has a different name; copy it to model.safetensors.index.json");
    }
    if ends(&[".onnx", ".ot", ".gguf", ".xml", ".tflite", ".pb", ".mlmodel", ".mlpackage", ".engine"]) {
        return format!(
            "{name} is an exported model, which is not read here; use the folder that it was exported from"
        );
    }
    format!(
        "{name} is a pickle, which can run code when it is read, and is refused; if you trust it, convert it with \
         transformers and the class that `architectures` names: {}",
        script(model, "")
    )
}

/// Advice for a folder without weights or configuration, based on the first recognized file or folder in it.
pub(super) fn of_folder(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    let is_snapshot = |name: &String| folder.join("snapshots").join(name).is_dir();
    if names.iter().any(|name| name == "snapshots") {
        let mut inner: Vec<String> = std::fs::read_dir(folder.join("snapshots"))
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(is_snapshot)
            .collect();
        inner.sort();
        let snapshot = inner.pop().unwrap_or_else(|| "NAME".to_owned());
        return Some(format!(
            "it is a folder of the Hugging Face cache; use {}",
            folder.join("snapshots").join(snapshot).display()
        ));
    }
    let known = |name: &&String| {
        let is = |start: &str, end: &str| name.starts_with(start) && name.ends_with(end);
        let exported = [".onnx", ".ot", ".gguf", ".tflite", ".pb", ".mlmodel", ".mlpackage", ".engine"];
        is("pytorch_model", ".bin")
            || is("pytorch_model", ".index.json")
            || is("tf_model", "")
            || is("flax_model", "")
            || is("adapter_model", "")
            || is("openvino", ".xml")
            || is("model.safetensors.index", ".json")
            || [".safetensors", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"].iter().any(|ending| name.ends_with(ending))
            || exported.iter().any(|ending| name.ends_with(ending))
    };
    // Weights that can be used come first: other names of safetensors files, then pickles, then exports.
    let rank = |name: &&String| {
        let rank = [".safetensors", ".json", ".bin"].iter().position(|ending| name.ends_with(ending)).unwrap_or(3);
        (rank, name.starts_with("adapter_"))
    };
    if let Some(name) = names.iter().filter(known).min_by_key(rank) {
        return Some(of_file(name));
    }
    let inside = names.iter().find(|name| folder.join(name).join("config.json").is_file())?;
    Some(format!("the model may be in {}", folder.join(inside).display()))
}
