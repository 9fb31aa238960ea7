use super::*;

/// Writes the state of a checkpoint, without the files of a model.
fn write(folder: &Path, iteration: u64, val_loss: Option<f64>, version: u32) -> PathBuf {
    let config = Config::default();
    let state = CheckpointState {
        base: None,
        version,
        iteration,
        last_eval: val_loss.map(|_| iteration),
        val_loss,
        best_val_loss: val_loss,
        learning_rate: None,
        loss_scale: None,
        products: None,
        seconds: None,
        plan: Plan::new(&config, 64),
        config,
        tokenizer: None,
        data: String::new(),
        hashes: BTreeMap::new(),
    };
    let path = folder.join(format!("{iteration:08}"));
    disk::create_dir_all(&path).unwrap();
    disk::write(path.join(STATE_FILE), json(&state)).unwrap();
    path
}

#[test]
fn the_newest_and_the_best_checkpoint_stay() {
    let folder = tempfile::tempdir().unwrap();
    let losses = [(10, Some(3.0)), (20, Some(2.0)), (30, Some(2.5)), (40, None), (50, Some(4.0))];
    for (iteration, val_loss) in losses {
        write(folder.path(), iteration, val_loss, VERSION);
    }
    let iterations = || -> Vec<u64> {
        numbered(folder.path()).unwrap().into_iter().map(|(iteration, _)| iteration).collect()
    };
    let newest = folder.path().join("00000050");
    prune(folder.path(), 3, &newest);
    assert_eq!(iterations(), [20, 30, 40, 50]);
    prune(folder.path(), 1, &newest);
    assert_eq!(iterations(), [20, 50]);
}

#[test]
fn a_checkpoint_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 10, None, VERSION + 1);
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("version 2, this wgpt reads 1"), "{error}");
    assert!(Checkpoint::open(&write(folder.path(), 20, None, VERSION)).is_ok());
}

#[test]
fn a_huge_configuration_is_refused_before_it_is_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 10, None, VERSION);
    let file = path.join(STATE_FILE);
    let mut state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    state["hashes"]["config.json"] = "0".into();
    std::fs::write(&file, state.to_string()).unwrap();
    // It has no content, so it takes no space.
    std::fs::File::create(path.join("config.json")).unwrap().set_len(65 << 20).unwrap();
    let error = Checkpoint::open(&path).unwrap_err();
    assert!(error.text.contains("at most 64"), "{error}");
}
